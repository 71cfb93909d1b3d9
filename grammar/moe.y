%code top {
// The grammar of .moe files. Actions only build nodes (compiler/syntax/parse.c); nothing is judged here. After an error
// the parser drops what it was building and goes on at the next token that can stand in the list around it.
}

%define api.pure full
%define api.prefix {moe_}
%define api.token.prefix {TOKEN_}
%define api.location.type {struct span}
%define parse.error custom
%define parse.lac full
%locations
%expect 0
%parse-param {struct parser *parser}
%lex-param {struct parser *parser}

%code requires {
#include "compiler/syntax/parser.h"
}

%union {
    uint32_t token;             // its number in parser->tokens
    node_id node;
    struct node_list list;
    const char *text;           // an operator
}

%code {
static int moe_lex(MOE_STYPE *value, struct span *place, struct parser *parser);
static void moe_error(struct span *place, struct parser *parser, const char *message);

#define YYLLOC_DEFAULT(current, rhs, count)                                                                            \
    do {                                                                                                               \
        (current) = (count) ? YYRHSLOC(rhs, 1) : YYRHSLOC(rhs, 0);                                                     \
        (current).begin = (count) ? (current).begin : (current).end;                                                   \
        (current).end = YYRHSLOC(rhs, count).end;                                                                      \
    } while (0)

#define NODE(kind, place, ...) parser_node(parser, NODE_##kind, place, (const node_id[AST_SLOTS]){__VA_ARGS__})
#define NAMED(node, token) parser_named(parser, node, token)
#define FLAG(node, flag) parser_flagged(parser, node, flag)
#define LITERAL(kind, token) parser_literal(parser, NODE_##kind, token)
#define APPEND(list, node) parser_append(parser, list, node)
#define FIRST(node) parser_append(parser, (struct node_list){0}, node)
#define NOTHING ((struct node_list){0})
}

%token END 0 "end of the file"
%token <token> IDENT "a name" INT "an integer" FLOAT "a number" QUANTITY "a quantity" PERCENT "a percentage"
%token <token> STRING "a string"
%token <token> CLUSTER "cluster" DEVICE "device" FORMAT "format" LAYER "layer" MONITOR "monitor" ORDER "order"
%token <token> PLACEMENT "placement" SCHEDULE "schedule" WEIGHTS "weights" TRUE "true" FALSE "false"
%token ALERT "alert" ACROSS "across" AFTER "after" AND "and" AS "as" ASSERT "assert" AT "at" AXIS "axis"
%token BEFORE "before" BIND "bind" CONST "const" DEFER "defer" DIM "dim" ELSE "else" ENGINE "engine" EXPECT "expect"
%token EXTERN "extern" FILL "fill" FOR "for" IF "if" IMPORT "import" IN "in" INTO "into" KERNEL "kernel" LET "let"
%token LINK "link" MOD "mod" NOT "not" ON "on" OP "op" OR "or" OVER "over" PARAM "param" PHASE "phase"
%token PIPELINE "pipeline" PIPELINED "pipelined" PLACE "place" REPLICATE "replicate" SPLIT "split" STAGE "stage"
%token STREAM "stream" SYNC "sync" TO "to" TRACK "track" UPDATE "update" USE "use" USES "uses" WHEN "when" WITH "with"
%token YIELD "yield"
%token SEMICOLON ";" COMMA "," COLON ":" DOT "." DOTS ".." OPEN_PAREN "(" CLOSE_PAREN ")" OPEN_BRACKET "["
%token CLOSE_BRACKET "]" OPEN_BRACE "{" CLOSE_BRACE "}" ASSIGN "=" ADD_ASSIGN "+=" LESS_EQUAL "<=" LESS "<"
%token GREATER_EQUAL ">=" GREATER ">" EQUAL "==" NOT_EQUAL "!=" PLUS "+" MINUS "-" TIMES "*" DIVIDE "/"
%token OVERLAP "||" THEN "->"

%type <list> items device_members cluster_members placement_members op_members layer_members attrs monitor_members
%type <list> pipeline_members statements fields params opt_params names paths exprs knobs opt_knobs instances uses
%type <list> chains steps opt_args args path
%type <node> item import const dim format device cluster placement op layer weights schedule monitor pipeline assertion
%type <node> attr value record opt_record field device_member cluster_member placement_member op_member layer_member
%type <node> monitor_member pipeline_member param_decl phase stage param type knob block statement split stream bind
%type <node> loop if else fill order flow chain step instance opt_index opt_message opt_when opt_for
%type <node> let range use_one path_node range_or_none
%type <node> expr conj negation comparison sum product unary postfix call primary arg
%type <token> name
%type <text> compare add multiply

%initial-action { @$ = (struct span){parser->file, 0, 0}; }

%%

file: items                             { parser->root = NODE(FILE, @$, $1.first); }
    ;
items: %empty                           { $$ = NOTHING; }
    | items item                        { $$ = APPEND($1, parser_documented(parser, $2)); yyerrok; }
    | items error                       { $$ = $1; }
    ;
item: import ";" | const ";" | dim ";" | format ";" | assertion ";"
    | device | cluster | placement | op | layer | weights | schedule | monitor | pipeline
    ;

// Names and values

import: "import" path_node              { $$ = NODE(IMPORT, @$, $2); }
    | "import" path_node "as" IDENT     { $$ = NAMED(NODE(IMPORT, @$, $2), $4); }
    | "import" path_node "{" names "}"  { $$ = NODE(IMPORT, @$, $2, $4.first); }
    | "import" STRING "{" names "}"     { $$ = FLAG(NODE(IMPORT, @$, LITERAL(STRING, $2), $4.first), 1); }
    | "import" STRING "as" IDENT        { $$ = FLAG(NAMED(NODE(IMPORT, @$, LITERAL(STRING, $2)), $4), 1); }
    ;
const: "const" IDENT "=" value          { $$ = NAMED(NODE(CONST, @$, $4), $2); }
    ;
dim: "dim" IDENT "=" expr               { $$ = NAMED(NODE(DIM, @$, $4), $2); }
    | "dim" IDENT "<=" expr             { $$ = FLAG(NAMED(NODE(DIM, @$, $4), $2), 1); }
    ;
format: "format" IDENT "=" path_node opt_record { $$ = NAMED(NODE(FORMAT, @$, $4, $5), $2); }
    ;
attrs: %empty                           { $$ = NOTHING; }
    | attrs attr ";"                    { $$ = APPEND($1, $2); yyerrok; }
    | attrs error                       { $$ = $1; }
    ;
attr: name "=" value                    { $$ = NAMED(NODE(ATTR, @$, $3), $1); }
    ;
value: expr | record
    ;
opt_record: %empty                      { $$ = 0; }
    | record
    ;
record: "{" "}"                         { $$ = NODE(RECORD, @$, 0); }
    | "{" fields "}"                    { $$ = NODE(RECORD, @$, $2.first); }
    | "{" fields "," "}"                { $$ = NODE(RECORD, @$, $2.first); }
    ;
fields: field                           { $$ = FIRST($1); }
    | fields "," field                  { $$ = APPEND($1, $3); }
    ;
field: name ":" value                   { $$ = NAMED(NODE(FIELD, @$, $3), $1); }
    ;

// Where: hardware and placement

device: "device" IDENT "{" device_members "}" { $$ = NAMED(NODE(DEVICE, @$, $4.first), $2); }
    ;
device_members: %empty                  { $$ = NOTHING; }
    | device_members device_member ";"  { $$ = APPEND($1, $2); yyerrok; }
    | device_members error              { $$ = $1; }
    ;
device_member: attr
    | "engine" uses                     { $$ = NODE(ENGINE, @$, $2.first); }
    ;
cluster: "cluster" IDENT "{" cluster_members "}" { $$ = NAMED(NODE(CLUSTER, @$, $4.first), $2); }
    ;
cluster_members: %empty                 { $$ = NOTHING; }
    | cluster_members cluster_member ";" { $$ = APPEND($1, $2); yyerrok; }
    | cluster_members error             { $$ = $1; }
    ;
cluster_member: attr
    | "axis" IDENT "[" expr "]"         { $$ = NAMED(NODE(AXIS, @$, $4), $2); }
    | "link" IDENT "across" IDENT record { $$ = NAMED(NODE(LINK, @$, LITERAL(NAME, $4), $5), $2); }
    | "device" path_node "at" instances { $$ = NODE(MIXED, @$, $2, $4.first); }
    ;
placement: "placement" IDENT "on" path_node "{" placement_members "}"
                                        { $$ = NAMED(NODE(PLACEMENT, @$, $4, $6.first), $2); }
    ;
placement_members: %empty               { $$ = NOTHING; }
    | placement_members placement_member ";" { $$ = APPEND($1, $2); yyerrok; }
    | placement_members error           { $$ = $1; }
    ;
placement_member: attr
    | "place" path_node "over" names opt_record { $$ = NODE(PLACE, @$, $2, $4.first, $5); }
    | "replicate" path_node opt_record  { $$ = NODE(REPLICATE, @$, $2, $3); }
    ;

// What: operators and layers

op: "op" IDENT "(" opt_params ")" "->" type "{" op_members "}"
                                        { $$ = NAMED(NODE(OP, @$, $4.first, $7, $9.first), $2); }
    ;
op_members: %empty                      { $$ = NOTHING; }
    | op_members op_member ";"          { $$ = APPEND($1, $2); yyerrok; }
    | op_members phase                  { $$ = APPEND($1, $2); }
    | op_members error                  { $$ = $1; }
    ;
op_member: attr | param_decl
    | "uses" uses                       { $$ = NODE(USES, @$, $2.first); }
    | "kernel" IDENT STRING             { $$ = NAMED(NODE(KERNEL, @$, LITERAL(STRING, $3)), $2); }
    ;
phase: "phase" IDENT "{" op_members "}" { $$ = NAMED(NODE(PHASE, @$, $4.first), $2); }
    ;
layer: "layer" IDENT "(" opt_params ")" "->" type "{" layer_members "}"
                                        { $$ = NAMED(NODE(LAYER, @$, $4.first, $7, $9.first), $2); }
    ;
layer_members: %empty                   { $$ = NOTHING; }
    | layer_members layer_member ";"    { $$ = APPEND($1, $2); yyerrok; }
    | layer_members error               { $$ = $1; }
    ;
layer_member: param_decl | let | stage
    | "extern" stage                    { $$ = parser_extended(parser, FLAG($2, 1), @$); }
    | "yield" expr                      { $$ = NODE(YIELD, @$, $2); }
    ;
stage: "stage" IDENT ":" names "=" call { $$ = NAMED(NODE(STAGE, @$, $4.first, $6), $2); }
    ;
param_decl: "param" names ":" type      { $$ = NODE(PARAM_DECL, @$, $2.first, $4); }
    | "param" names ":" type "=" expr   { $$ = NODE(PARAM_DECL, @$, $2.first, $4, $6); }
    ;
opt_params: %empty                      { $$ = NOTHING; }
    | params
    ;
params: param                           { $$ = FIRST($1); }
    | params "," param                  { $$ = APPEND($1, $3); }
    ;
param: IDENT ":" type                   { $$ = NAMED(NODE(PARAM, @$, $3), $1); }
    ;
type: path_node                         { $$ = NODE(TYPE, @$, $1); }
    | path_node "[" exprs "]"           { $$ = NODE(TYPE, @$, $1, $3.first); }
    ;
weights: "weights" IDENT "for" path_node "{" attrs "}" { $$ = NAMED(NODE(WEIGHTS, @$, $4, $6.first), $2); }
    ;

// When: schedules

schedule: "schedule" IDENT opt_knobs "for" path_node block
                                        { $$ = NAMED(NODE(SCHEDULE, @$, $3.first, $5, $6), $2); }
    | "schedule" IDENT opt_knobs "for" "(" names ")" block
                                        { $$ = FLAG(NAMED(NODE(SCHEDULE, @$, $3.first, $6.first, $8), $2), 1); }
    ;
opt_knobs: %empty                       { $$ = NOTHING; }
    | "(" knobs ")"                     { $$ = $2; }
    ;
knobs: knob                             { $$ = FIRST($1); }
    | knobs "," knob                    { $$ = APPEND($1, $3); }
    ;
knob: IDENT range_or_none "=" expr      { $$ = NAMED(NODE(KNOB, @$, $2, $4), $1); }
    ;
range_or_none: %empty                   { $$ = 0; }
    | ":" range                         { $$ = $2; }
    ;
block: "{" statements "}"               { $$ = NODE(BLOCK, @$, $2.first); }
    ;
statements: %empty                      { $$ = NOTHING; }
    | statements statement ";"          { $$ = APPEND($1, $2); yyerrok; }
    | statements loop                   { $$ = APPEND($1, $2); }
    | statements if                     { $$ = APPEND($1, $2); }
    | statements error                  { $$ = $1; }
    ;
statement: split | stream | bind | fill | order | let | assertion | flow
    | "defer" instances                 { $$ = NODE(DEFER, @$, $2.first); }
    | "sync"                            { $$ = NODE(SYNC, @$, 0); }
    ;
split: "split" path_node "into" expr "as" IDENT opt_record { $$ = NAMED(NODE(SPLIT, @$, $2, $4, $7), $6); }
    ;
stream: "stream" IDENT opt_index "uses" uses { $$ = NAMED(NODE(STREAM, @$, $3, $5.first), $2); }
    ;
bind: "bind" paths "to" IDENT opt_index opt_record { $$ = NAMED(NODE(BIND, @$, $2.first, $5, $6), $4); }
    ;
loop: "for" IDENT "in" range block      { $$ = NAMED(NODE(LOOP, @$, $4, $5), $2); }
    | "pipelined" IDENT "in" range block { $$ = FLAG(NAMED(NODE(LOOP, @$, $4, $5), $2), 1); }
    ;
if: "if" expr block else                { $$ = NODE(IF, @$, $2, $3, $4); }
    ;
else: %empty                            { $$ = 0; }
    | "else" block                      { $$ = $2; }
    | "else" if                         { $$ = $2; }
    ;
fill: "fill" IDENT "with" instance opt_record { $$ = NAMED(NODE(FILL, @$, $4, $5), $2); }
    ;
order: "order" instance "after" instances { $$ = NODE(ORDER, @$, $2, $4.first); }
    | "order" instance "before" instances { $$ = FLAG(NODE(ORDER, @$, $2, $4.first), 1); }
    ;
flow: chains                            { $$ = NODE(FLOW, @$, $1.first); }
    ;
chains: chain                           { $$ = FIRST($1); }
    | chains "||" chain                 { $$ = APPEND($1, $3); }
    ;
chain: steps                            { $$ = NODE(CHAIN, @$, $1.first); }
    ;
steps: step                             { $$ = FIRST($1); }
    | steps "->" step                   { $$ = APPEND($1, $3); }
    ;
step: instance                          { $$ = NODE(STEP, @$, $1); }
    | instance "on" IDENT opt_index     { $$ = NODE(STEP, @$, $1, LITERAL(NAME, $3), $4); }
    | "(" flow ")"                      { $$ = $2; }
    ;
instances: instance                     { $$ = FIRST($1); }
    | instances "," instance            { $$ = APPEND($1, $3); }
    ;
instance: path_node                     { $$ = NODE(INSTANCE, @$, $1); }
    | path_node "[" exprs "]"           { $$ = NODE(INSTANCE, @$, $1, $3.first); }
    ;
opt_index: %empty                       { $$ = 0; }
    | "[" expr "]"                      { $$ = $2; }
    ;

// Watch, and everything together

monitor: "monitor" IDENT "on" path_node "{" monitor_members "}"
                                        { $$ = NAMED(NODE(MONITOR, @$, $4, $6.first), $2); }
    ;
monitor_members: %empty                 { $$ = NOTHING; }
    | monitor_members monitor_member ";" { $$ = APPEND($1, $2); yyerrok; }
    | monitor_members error             { $$ = $1; }
    ;
monitor_member: attr
    | "track" IDENT "=" expr            { $$ = NAMED(NODE(TRACK, @$, $4), $2); }
    | "alert" STRING "when" expr opt_for { $$ = NODE(ALERT, @$, LITERAL(STRING, $2), $4, $5); }
    | "update" path_node "=" expr       { $$ = NODE(UPDATE, @$, $2, $4); }
    | "update" path_node "+=" expr      { $$ = FLAG(NODE(UPDATE, @$, $2, $4), 1); }
    ;
opt_for: %empty                         { $$ = 0; }
    | "for" expr                        { $$ = $2; }
    ;
pipeline: "pipeline" IDENT "{" pipeline_members "}" { $$ = NAMED(NODE(PIPELINE, @$, $4.first), $2); }
    ;
pipeline_members: %empty                { $$ = NOTHING; }
    | pipeline_members pipeline_member ";" { $$ = APPEND($1, $2); yyerrok; }
    | pipeline_members error            { $$ = $1; }
    ;
pipeline_member: attr | assertion
    | "use" path_node opt_when          { $$ = NODE(USE, @$, $2, 0, $3); }
    | "use" path_node "(" opt_args ")" opt_when { $$ = NODE(USE, @$, $2, $4.first, $6); }
    ;
opt_when: %empty                        { $$ = 0; }
    | "when" expr                       { $$ = $2; }
    ;
assertion: "assert" expr opt_message    { $$ = NODE(ASSERT, @$, $2, $3); }
    | "expect" expr opt_message         { $$ = FLAG(NODE(ASSERT, @$, $2, $3), 1); }
    ;
opt_message: %empty                     { $$ = 0; }
    | "else" STRING                     { $$ = LITERAL(STRING, $2); }
    ;
let: "let" IDENT "=" expr               { $$ = NAMED(NODE(LET, @$, $4), $2); }
    ;

// Expressions, lowest precedence first

expr: conj
    | expr "or" conj                    { $$ = parser_operator(parser, NODE_BINARY, @$, "or", $1, $3); }
    ;
conj: negation
    | conj "and" negation               { $$ = parser_operator(parser, NODE_BINARY, @$, "and", $1, $3); }
    ;
negation: comparison
    | "not" negation                    { $$ = parser_operator(parser, NODE_UNARY, @$, "not", $2, 0); }
    ;
comparison: sum
    | sum compare sum                   { $$ = parser_operator(parser, NODE_BINARY, @$, $2, $1, $3); }
    ;
compare: "<" { $$ = "<"; } | ">" { $$ = ">"; } | "<=" { $$ = "<="; } | ">=" { $$ = ">="; }
    | "==" { $$ = "=="; } | "!=" { $$ = "!="; }
    ;
sum: product
    | sum add product                   { $$ = parser_operator(parser, NODE_BINARY, @$, $2, $1, $3); }
    ;
add: "+" { $$ = "+"; } | "-" { $$ = "-"; }
    ;
product: unary
    | product multiply unary            { $$ = parser_operator(parser, NODE_BINARY, @$, $2, $1, $3); }
    ;
multiply: "*" { $$ = "*"; } | "/" { $$ = "/"; } | "mod" { $$ = "mod"; }
    ;
unary: postfix
    | "-" unary                         { $$ = parser_operator(parser, NODE_UNARY, @$, "-", $2, 0); }
    ;
postfix: primary | call
    | postfix "." name                  { $$ = NAMED(NODE(MEMBER, @$, $1), $3); }
    | postfix "[" exprs "]"             { $$ = NODE(INDEX, @$, $1, $3.first); }
    ;
call: postfix "(" opt_args ")"          { $$ = NODE(CALL, @$, $1, $3.first); }
    ;
opt_args: %empty                        { $$ = NOTHING; }
    | args | args ","
    ;
args: arg                               { $$ = FIRST($1); }
    | args "," arg                      { $$ = APPEND($1, $3); }
    ;
arg: value                              { $$ = NODE(ARG, @$, $1); }
    | name ":" value                    { $$ = NAMED(NODE(ARG, @$, $3), $1); }
    ;
primary: INT                            { $$ = LITERAL(INT, $1); }
    | FLOAT                             { $$ = LITERAL(FLOAT, $1); }
    | QUANTITY                          { $$ = LITERAL(QUANTITY, $1); }
    | PERCENT                           { $$ = LITERAL(PERCENT, $1); }
    | STRING                            { $$ = LITERAL(STRING, $1); }
    | "true"                            { $$ = LITERAL(BOOL, $1); }
    | "false"                           { $$ = LITERAL(BOOL, $1); }
    | name                              { $$ = LITERAL(NAME, $1); }
    | "(" expr ")"                      { $$ = NODE(PAREN, @$, $2); }
    | "[" "]"                           { $$ = NODE(LIST, @$, 0); }
    | "[" exprs "]"                     { $$ = NODE(LIST, @$, $2.first); }
    ;

// Small parts

range: expr ".." expr                   { $$ = NODE(RANGE, @$, $1, $3); }
    ;
uses: use_one                           { $$ = FIRST($1); }
    | uses "," use_one                  { $$ = APPEND($1, $3); }
    ;
use_one: IDENT opt_index                { $$ = NAMED(NODE(USE_ONE, @$, $2), $1); }
    ;
path_node: path                         { $$ = NODE(PATH, @$, $1.first); }
    ;
path: name                              { $$ = FIRST(LITERAL(NAME, $1)); }
    | path "." name                     { $$ = APPEND($1, LITERAL(NAME, $3)); }
    ;
paths: path_node                        { $$ = FIRST($1); }
    | paths "," path_node               { $$ = APPEND($1, $3); }
    ;
name: IDENT | "cluster" | "device" | "format" | "layer" | "monitor" | "order" | "placement" | "schedule" | "weights"
    ;
names: IDENT                            { $$ = FIRST(LITERAL(NAME, $1)); }
    | names "," IDENT                   { $$ = APPEND($1, LITERAL(NAME, $3)); }
    ;
exprs: expr                             { $$ = FIRST($1); }
    | exprs "," expr                    { $$ = APPEND($1, $3); }
    ;

%%

static int moe_lex(MOE_STYPE *value, struct span *place, struct parser *parser)
{
    const struct token_list *tokens = &parser->tokens;
    while (tokens->at[parser->next].kind == TOKEN_COMMENT || tokens->at[parser->next].kind == TOKEN_DOC)
        parser->next++;
    const struct token *token = &tokens->at[parser->next];
    parser->current = parser->next;
    value->token = parser->current;
    *place = token->span;
    if (token->kind != TOKEN_END)
        parser->next++;
    return token->kind == TOKEN_INVALID ? TOKEN_MOE_error : token->kind;
}

static int yyreport_syntax_error(const yypcontext_t *state, struct parser *parser)
{
    enum { TOKENS = YYNTOKENS };
    yysymbol_kind_t expected[TOKENS];
    int tokens[TOKENS];
    const char *names[TOKENS];
    int count = yypcontext_expected_tokens(state, expected, TOKENS);
    if (count == YYENOMEM)
        return YYENOMEM;
    for (int i = 0; i < count; i++)
        names[i] = yysymbol_name(expected[i]);
    for (int i = 0; i < count; i++) {
        tokens[i] = TOKEN_MOE_UNDEF;
        for (int number = 0; number <= YYMAXUTOK; number++)
            if (YYTRANSLATE(number) == expected[i])
                tokens[i] = number;
    }
    parser_report(parser, (struct expectation){tokens, names, count});
    return 0;
}

/// Bison calls this only when its stack is full or memory is out.
static void moe_error(struct span *place, struct parser *parser, const char *message)
{
    (void)message;
    parser_report_too_deep(parser, *place);
}
