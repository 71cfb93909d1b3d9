# moecc: `make` builds, `make demo` shows it working, `make check` runs every test. Both install what is missing first.
#
#   make                 build/moecc, build/libmoe.a, build/libmoe.so
#   make MODE=debug      the same with assertions, IR checkers after every pass, guard pages (build/debug)
#   make MODE=asan|tsan  under sanitizers (build/asan, build/tsan)
#   make install         PREFIX=/usr/local DESTDIR=
#   make check-long      the tests that take minutes
#   make message-sites   calls that tell the user something which no test reaches
#   make fuzz-cover      how much of each reader the seeds of its fuzz target reach
#   make deps            install missing packages (root or sudo)

MODE   ?= release
PREFIX ?= /usr/local
CC     ?= cc
ifeq ($(origin CC),default)
CC = gcc
endif
VERSION := 0.1.0

B := $(if $(filter release,$(MODE)),build,build/$(MODE))

# Everything below needs the dependencies; the targets that install them re-run make.
.PHONY: all deps demo check check-long gpu-check message-sites fuzz-smoke fuzz-cover bench bench-serving bench-overlap bench-predict bench-tune bench-models bench-smoke bench-full install clean lint test-binary
all: $(B)/moecc $(B)/libmoe.a $(B)/libmoe.so

deps:
	@sh .ci/deps

demo: deps
	@$(MAKE) --no-print-directory all
	@sh examples/demo/run.sh $(B)

check: deps
	@sh tests/check.sh

# What takes minutes: the verifier against the explorer on 240,000 programs, a minute of fuzzing for every reader.
check-long: deps
	@$(MAKE) --no-print-directory test-binary
	@MOE_PROOF_PROGRAMS=240000 MOE_MUTATIONS=20000 MOE_RANDOM_SCHEDULES=2000 $(B)/moe-tests proof mutations random_schedules
	@MOE_CUDA_FAULTS=all $(B)/moe-tests planted
	@MOE_CUDA_EXAMPLES="hello olmoe mixtral wire_formats schedules/expert_waves deepseek_v3" sh tests/commands/cuda_code.sh
	@$(MAKE) --no-print-directory fuzz-smoke FUZZ_SECONDS=60

# ---------------------------------------------------------------------------------------------- tools and flags

LLVM_CONFIG ?= $(firstword $(wildcard $(foreach v,19 18 17 16,/usr/lib/llvm-$(v)/bin/llvm-config)) $(shell command -v llvm-config))
LLVM_CFLAGS = $(if $(LLVM_CONFIG),-isystem $(shell $(LLVM_CONFIG) --includedir 2>/dev/null))
LLVM_LIBS   = $(if $(LLVM_CONFIG),-L$(shell $(LLVM_CONFIG) --libdir 2>/dev/null) $(shell $(LLVM_CONFIG) --link-shared --libs 2>/dev/null))

WARN   := -Wall -Wextra -Wconversion -Werror
COMMON := -std=c17 -D_GNU_SOURCE -I. -I$(B)/gen $(WARN) -fPIC -pthread -fno-math-errno -fvisibility=hidden -DMOECC_VERSION='"$(VERSION)"'
MODE_release := -O2 -g -DNDEBUG
MODE_debug   := -O1 -g
# gcc guesses at truncation wrongly in instrumented code.
MODE_asan    := -O1 -g -Wno-format-truncation -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
MODE_tsan    := -O1 -g -Wno-format-truncation -fsanitize=thread
MODE_cov     := -O0 -g --coverage
# libFuzzer's coverage; built by `make fuzz-smoke` with clang.
MODE_fuzz   := -O1 -g -Wno-format-truncation -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all \
    -fprofile-instr-generate -fcoverage-mapping
FLAGS  := $(COMMON) $(MODE_$(MODE)) $(CFLAGS)
SANITIZE := $(filter -fsanitize%,$(MODE_$(MODE)))
# libjansson is linked statically, so that built executables need nothing but libc.
STATIC_LIBS := -Wl,-Bstatic -ljansson -lm -Wl,-Bdynamic

# ---------------------------------------------------------------------------------------------- sources

RUNTIME_SRC  := $(filter-out runtime/cli/stub.c,$(wildcard runtime/*.c runtime/*/*.c))
COMPILER_SRC := $(filter-out compiler/main.c,$(wildcard compiler/*.c compiler/*/*.c compiler/*/*/*.c))
BENCH_SRC    := $(wildcard tests/bench/*.c)
FUZZ_SRC     := $(wildcard tests/fuzz/*.c)
TEST_SRC     := $(filter-out $(BENCH_SRC) $(FUZZ_SRC),$(wildcard tests/*.c tests/*/*.c))
GEN_SRC      := $(B)/gen/moe.tab.c $(B)/gen/moe.lex.c $(B)/gen/embedded.c

obj = $(patsubst %.c,$(B)/obj/%.o,$(patsubst $(B)/gen/%,gen/%,$(1)))
RUNTIME_OBJ  := $(call obj,$(RUNTIME_SRC))
COMPILER_OBJ := $(call obj,$(COMPILER_SRC))
GRAMMAR_OBJ  := $(B)/obj/gen/moe.tab.o $(B)/obj/gen/moe.lex.o
TEST_OBJ     := $(call obj,$(TEST_SRC))

-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)

$(B)/obj/%.o: %.c | $(B)/gen/moe.tab.h
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) $(FLAGS) $(if $(findstring codegen,$<),$(LLVM_CFLAGS)) -MMD -MP -c $< -o $@

# Generated parsers are compiled without -Wconversion; they are not ours to mend.
$(B)/obj/gen/%.o: $(B)/gen/%.c | $(B)/gen/moe.tab.h
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) $(filter-out -Wconversion -Wextra,$(FLAGS)) -Wno-unused -MMD -MP -c $< -o $@

$(B)/gen/moe.tab.c $(B)/gen/moe.tab.h &: grammar/moe.y
	@mkdir -p $(B)/gen
	@echo "  bison $<"
	@bison -Wall -Werror --defines=$(B)/gen/moe.tab.h -o $(B)/gen/moe.tab.c $<

$(B)/gen/moe.lex.c: grammar/moe.l
	@mkdir -p $(B)/gen
	@echo "  flex  $<"
	@flex -o $@ $<

# The standard library, the pages of `explain` and the two carriers of a built pipeline live inside moecc.
STDLIB := $(sort $(shell find stdlib -type f)) runtime/plan/kernels.h runtime/plan/limits.h runtime/plan/words.def
PAGES  := $(sort $(wildcard compiler/explain/pages/*.md))
$(B)/gen/embedded.c: compiler/base/embed.sh $(STDLIB) $(PAGES) $(B)/moe-stub $(B)/libmoe-carrier.so
	@mkdir -p $(B)/gen
	@sh compiler/base/embed.sh $(B) $(STDLIB) $(PAGES) > $@

# ---------------------------------------------------------------------------------------------- products

$(B)/libmoe.a: $(RUNTIME_OBJ)
	@echo "  ar    $@"
	@rm -f $@
	@$(AR) rcs $@ $^

# Distributions build libjansson.a for executables: it reaches the C library's `stdin` in a way that a shared object
# cannot. Nothing here lets it read standard input, so it gets a variable of ours under that name, not exported.
# Programs find a shared object by its soname, so a built library needs the name of its own file. The second object here
# is what `build --lib` writes: its soname is room for the longest name a file can have (compiler/plan/build.h).
$(B)/libmoe.so: SONAME = libmoe.so
$(B)/libmoe-carrier.so: SONAME = $(shell printf '%0255d' 0 | tr 0 =)
$(B)/libmoe.so $(B)/libmoe-carrier.so: $(RUNTIME_OBJ) runtime/libmoe.map
	@echo "  link  $@"
	@$(CC) $(FLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=runtime/libmoe.map \
	    -Wl,--defsym=stdin=moe_no_stdin -o $@ $(RUNTIME_OBJ) $(STATIC_LIBS)

$(B)/moe-stub: $(call obj,runtime/cli/stub.c) $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -o $@ $^ $(STATIC_LIBS)

$(B)/moecc: $(call obj,compiler/main.c) $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -o $@ $^ -lm $(STATIC_LIBS) $(LLVM_LIBS)

# The tests make calls to the system fail (tests/failures/interpose.c) and have AMX in software (tests/amx).
WRAP := $(foreach f,malloc calloc realloc aligned_alloc strdup open_memstream mmap open fopen fread fstat write fwrite \
    fclose close fchmod rename machine_runs,-Wl,--wrap=$(f))

$(B)/moe-tests: $(TEST_OBJ) $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) $(WRAP) -o $@ $^ -lcunit -lm $(STATIC_LIBS) $(LLVM_LIBS)

# Peers that are installed: what `make bench` compares with.
BENCH_LIBS := $(if $(wildcard /usr/include/libxsmm.h),-lxsmm -lxsmmnoblas -ldl) $(if $(wildcard /usr/include/dnnl.h),-ldnnl -fopenmp) \
    $(if $(wildcard /usr/include/cblas.h /usr/include/*/cblas.h),-lopenblas)

$(B)/obj/tests/bench/peer.o: FLAGS += -O3 -fno-trapping-math
$(B)/moe-bench: $(call obj,$(BENCH_SRC)) $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -o $@ $^ $(BENCH_LIBS) -lm $(STATIC_LIBS) $(LLVM_LIBS)

# Readers of what others wrote, under libFuzzer: FUZZ_SECONDS each. Only with a clang that has it.
FUZZ_SECONDS ?= 5
FUZZ_CC := $(firstword $(foreach c,clang-19 clang-18 clang-14 clang,$(shell command -v $(c) 2>/dev/null)))
FUZZERS := moe json plan safetensors records

$(B)/fuzz-%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/fuzz.o $(B)/obj/tests/fuzz/run_plan.o $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -fsanitize=fuzzer -o $@ $^ -lm $(STATIC_LIBS) $(LLVM_LIBS)

# What seeds are made with is no fuzz target itself.
$(B)/fuzz-seeds: $(B)/obj/tests/fuzz/seeds.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -o $@ $^ $(STATIC_LIBS)

.SECONDARY: $(FUZZERS:%=$(B)/obj/tests/fuzz/fuzz_%.o) $(addprefix $(B)/obj/tests/fuzz/,fuzz.o run_plan.o seeds.o)
message-sites:
	@$(MAKE) --no-print-directory MODE=cov build/cov/moe-tests build/cov/moecc
	@build/cov/moe-tests >build/cov/tests.log 2>&1 || true
	@sh tests/message_sites.sh build/cov

# How many lines of each reader its seeds reach.
fuzz-cover: FUZZ_SECONDS = cover
fuzz-cover fuzz-smoke:
	@if [ -z "$(FUZZ_CC)" ] || ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n; }' | \
	    $(FUZZ_CC) -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null; then \
	    echo "no clang with libFuzzer: fuzzing skipped"; exit 0; fi; \
	$(MAKE) --no-print-directory build/moecc && \
	$(MAKE) --no-print-directory MODE=fuzz CC=$(FUZZ_CC) $(FUZZERS:%=build/fuzz/fuzz-%) build/fuzz/fuzz-seeds && \
	sh tests/fuzz/run.sh build/fuzz $(FUZZ_SECONDS)

# What overlap is worth with emulated links, against its bounds; and what the cost model predicts, against measurement.
SCHEDULE_BENCH_SRC := $(wildcard tests/bench/schedules/*.c)
$(B)/moe-bench-%: $(B)/obj/tests/bench/schedules/%.o $(B)/obj/tests/bench/schedules/subject.o $(B)/obj/tests/bench/plan.o $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -o $@ $^ -lm $(STATIC_LIBS) $(LLVM_LIBS)

# One layer of published models at full size: up to 12 GB of memory each, a few minutes.
MODEL_BENCH_SRC := $(wildcard tests/bench/models/*.c)
$(B)/moe-bench-models: $(call obj,$(MODEL_BENCH_SRC)) $(B)/obj/tests/bench/schedules/subject.o $(B)/obj/tests/bench/plan.o $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) -o $@ $^ -lm $(STATIC_LIBS) $(LLVM_LIBS)

# A layer under calls whose token counts change, for SECONDS: allocations, size, spread of latencies.
SECONDS ?= 600
SERVING_SRC := $(wildcard tests/bench/serving/*.c) tests/bench/moecc.c tests/bench/plan.c tests/bench/problem.c
$(B)/moe-bench-serving: $(call obj,$(SERVING_SRC)) $(COMPILER_OBJ) $(GRAMMAR_OBJ) $(B)/obj/gen/embedded.o $(RUNTIME_OBJ)
	@echo "  link  $@"
	@$(CC) $(FLAGS) $(foreach f,malloc calloc realloc aligned_alloc mmap,-Wl,--wrap=$(f)) -o $@ $^ -lm $(STATIC_LIBS) $(LLVM_LIBS)

bench-serving: deps
	@$(MAKE) --no-print-directory $(B)/moe-bench-serving
	@$(B)/moe-bench-serving $(SECONDS)

bench-overlap bench-predict bench-tune bench-models: deps
	@$(MAKE) --no-print-directory $(B)/moe-$@
	@$(B)/moe-$@

test-binary: $(B)/moe-tests $(B)/moecc

# The kernels on this machine's GPU, in five minutes: right, and how fast.
gpu-check: test-binary
	@sh tests/gpu/check.sh $(B)/moe-tests

# A driver without a GPU, for the test of gpu-check.
$(B)/libfakecuda.so: tests/gpu/fake/fake_driver.c
	@echo "  link  $@"; $(CC) $(COMMON) -O1 -shared $< -o $@

# Whole layers against the machine's peak and bandwidth, probed in the same run.
# Layers against the machine's limits and the libraries one would otherwise use, which it installs: about ten minutes;
# -smoke one minute; -full every shape, dtype and routing, hours, and it goes on where it was stopped.
bench bench-smoke bench-full:
	@sh .ci/deps bench
	@$(MAKE) --no-print-directory $(B)/moe-bench
	@$(B)/moe-bench $(or $(patsubst bench-%,%,$(filter bench-%,$@)),standard) --out $(B)/bench.json

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/moecc
	install -m 755 $(B)/moecc $(DESTDIR)$(PREFIX)/bin/moecc
	install -m 644 $(B)/libmoe.a $(DESTDIR)$(PREFIX)/lib/libmoe.a
	install -m 755 $(B)/libmoe.so $(DESTDIR)$(PREFIX)/lib/libmoe.so
	install -m 644 runtime/moe.h $(DESTDIR)$(PREFIX)/include/moe.h
	cp -r stdlib/std stdlib/cuda $(DESTDIR)$(PREFIX)/share/moecc/

# Warnings as errors under a second compiler, where it is installed.
lint:
	@for c in clang-19 clang-18 clang; do command -v $$c >/dev/null 2>&1 && break; c=; done; \
	if [ -z "$$c" ]; then echo "clang is not installed: second compiler skipped"; exit 0; fi; \
	for f in $(RUNTIME_SRC) runtime/cli/stub.c $(COMPILER_SRC) compiler/main.c $(TEST_SRC) $(BENCH_SRC) $(SCHEDULE_BENCH_SRC) $(MODEL_BENCH_SRC); do \
	    $$c $(COMMON) $(LLVM_CFLAGS) -O1 -fsyntax-only $$f || exit 1; done; \
	for f in stdlib/cuda/host/*.cc; do $$c -x c++ -std=c++17 -Wall -Wextra -Werror -O1 -fsyntax-only $$f || exit 1; done; \
	echo "$$c: no warnings"

clean:
	rm -rf build
