// The safetensors reader on good, damaged, truncated and mutated files and on sharded checkpoints, and the writer.
#include "tests/weights/files.h"

#include "runtime/weights/random.h"
#include "runtime/weights/safetensors.h"
#include "runtime/mapped.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

int make_weights_folder(void)
{
    strcpy(folder, "/tmp/moe-weights-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

int remove_weights_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0 ? 0 : 1;
}

const char *weights_path(const char *name)
{
    static char path[4][256];
    static unsigned next;
    char *to = path[next++ % 4];
    snprintf(to, sizeof path[0], "%s/%s", folder, name);
    return to;
}

void write_test_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CU_ASSERT_FATAL(file != NULL);
    if (size)
        CU_ASSERT_EQUAL(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/// A file with this header and so many bytes of data; `claimed` replaces the header's length unless negative.
void write_test_file(const char *path, const char *header, size_t data, int64_t claimed)
{
    size_t length = strlen(header);
    uint8_t *bytes = calloc(1, 8 + length + data);
    CU_ASSERT_FATAL(bytes != NULL);
    uint64_t stated = claimed < 0 ? length : (uint64_t)claimed;
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(stated >> (8 * i));
    memcpy(bytes + 8, header, length);
    write_test_bytes(path, bytes, 8 + length + data);
    free(bytes);
}

// --- the reader -----------------------------------------------------------------------------------------------------

#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct damaged {
    const char *header;
    size_t data;
    int64_t claimed;
    const char *message; // what the error must contain, besides the file's name
} DAMAGED[] = {
    {"", 0, 0, "header is not valid JSON"},
    {"{}", 0, 1000, "truncated: its header"},
    {"{}", 0, 100000001, "a header of 100000001 bytes"},
    {"{}", 0, INT64_MAX, "a header of"},
    {"[]", 0, -1, "header is not a JSON object"},
    {"not json", 0, -1, "header is not valid JSON"},
    {"{\"a\":", 0, -1, "header is not valid JSON"},
    {"{\"a\":\"\xff\xfe\"}", 0, -1, "header is not valid JSON"},
    {"{} {}", 0, -1, "header is not valid JSON"},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 4, 8) "}", 8, -1, "duplicate"},
    {"{" T("a", "F32", "[2]", 0, 8) "}", 4, -1, "truncated: tensor `a`"},
    {"{" T("a", "F32", "[2]", 0, 8) "}", 0, -1, "truncated: tensor `a`"},
    {"{" T("a", "F32", "[1]", 0, 4) "}", 5, -1, "1 bytes after the last tensor `a`"},
    {"{}", 5, -1, "5 bytes after the last tensor"},
    {"{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[2]", 4, 12) "}", 12, -1, "`a` and `b` overlap"},
    {"{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[1]", 8, 12) "}", 12, -1, "a hole of 4 bytes before tensor `b`"},
    {"{" T("a", "F32", "[1]", 4, 8) "}", 8, -1, "a hole of 4 bytes before tensor `a`"},
    {"{" T("a", "F32", "[3]", 0, 8) "}", 8, -1, "tensor `a` has 8 bytes, but its dtype and shape need 12"},
    {"{" T("a", "F16", "[2]", 0, 8) "}", 8, -1, "tensor `a` has 8 bytes"},
    {"{" T("a", "F31", "[2]", 0, 8) "}", 8, -1, "tensor `a` has an unknown dtype `F31`"},
    {"{" T("a", "AVERYVERYLONGDTYPENAME", "[2]", 0, 8) "}", 8, -1, "unknown dtype"},
    {"{" T("a", "F32", "[-2]", 0, 8) "}", 8, -1, "dimension 0 of its shape"},
    {"{" T("a", "F32", "[2.0]", 0, 8) "}", 8, -1, "dimension 0 of its shape"},
    {"{" T("a", "F32", "[\"2\"]", 0, 8) "}", 8, -1, "dimension 0 of its shape"},
    {"{" T("a", "F32", "2", 0, 8) "}", 8, -1, "tensor `a` has no shape"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8, -1, "9 dimensions"},
    {"{" T("a", "F32", "[4611686018427387904,4]", 0, 8) "}", 8, -1, "beyond any memory"},
    {"{" T("a", "F32", "[99999999999999999999]", 0, 8) "}", 8, -1, "not valid JSON"},
    {"{" T("a", "F32", "[2]", 8, 0) "}", 8, -1, "bad data_offsets"},
    {"{" T("a", "F32", "[2]", -8, 0) "}", 8, -1, "bad data_offsets"},
    {"{" T("a", "F32", "[2]", 0, 9223372036854775807) "}", 8, -1, "truncated: tensor `a`"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, -1, "bad data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, -1, "bad data_offsets"},
    {"{\"a\":{\"dtype\":5,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, -1, "unknown dtype"},
    {"{\"a\":[1]}", 0, -1, "tensor `a` is not described"},
    {"{\"\\u001b[2J\":[1]}", 0, -1, "tensor `?[2J` is not described"},
};

static void test_damaged(void)
{
    const char *path = weights_path("damaged.safetensors");
    char error[512];
    for (size_t i = 0; i < sizeof DAMAGED / sizeof *DAMAGED; i++) {
        write_test_file(path, DAMAGED[i].header, DAMAGED[i].data, DAMAGED[i].claimed);
        error[0] = 0;
        struct tensor_set *set = tensors_open(path, error, sizeof error);
        CU_ASSERT_EQUAL(errno, 0);
        if (set || !strstr(error, DAMAGED[i].message) || strncmp(error, path, strlen(path)) != 0) {
            fprintf(stderr, "damaged file %zu: %s: `%s`\n", i, set ? "accepted" : "wrong message", error);
            CU_FAIL("damaged file");
        }
        tensors_close(set);
    }
    for (size_t size = 0; size < 8; size++) {
        write_test_bytes(path, "\2\0\0\0\0\0\0", size);
        CU_ASSERT_PTR_NULL(tensors_open(path, error, sizeof error));
        CU_ASSERT_PTR_NOT_NULL(strstr(error, "truncated"));
    }
    CU_ASSERT_PTR_NULL(tensors_open(weights_path("absent"), error, sizeof error));
    CU_ASSERT_EQUAL(errno, ENOENT);
    CU_ASSERT_PTR_NULL(tensors_open("/dev/null", error, sizeof error));
    CU_ASSERT_NOT_EQUAL(errno, 0);
    CU_ASSERT_PTR_NULL(tensors_open(path, error, 0)); // no room for a message is no crash
}

/// A good file with a few bytes changed is read or refused, and what is read lies inside the file.
static void test_mutated(void)
{
    const char *header = "{" T("a", "F32", "[1]", 0, 4) "," T("bc", "BF16", "[2,3]", 4, 16) "}";
    const char *path = weights_path("mutated.safetensors");
    uint8_t bytes[256], changed[256];
    char error[256];
    write_test_file(path, header, 16, -1);
    FILE *file = fopen(path, "rb");
    CU_ASSERT_FATAL(file != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, file), outside = 0;
    volatile unsigned sum = 0;
    fclose(file);
    float draws[4];
    for (uint64_t trial = 0; trial < 3000; trial++) {
        random_weights(trial, 0, 1e6f, draws, 4);
        memcpy(changed, bytes, size);
        for (int i = 0; i < 4; i += 2)
            changed[(size_t)(int64_t)(draws[i] + 1e7f) % size] ^=
                (uint8_t)(trial % 4 ? 1 << trial % 8 : (int64_t)draws[i + 1]);
        write_test_bytes(path, changed, size);
        struct tensor_set *set = tensors_open(path, error, sizeof error);
        for (size_t i = 0; set && i < tensors_count(set); i++) {
            const struct tensor *tensor = tensors_at(set, i);
            outside += tensor->bytes > 16 || tensors_find(set, tensor->name) != tensor;
            for (size_t at = 0; at < tensor->bytes; at++)
                sum = sum + ((const uint8_t *)tensor->data)[at];
        }
        tensors_close(set);
    }
    CU_ASSERT_EQUAL(outside, 0);
}

/// Every prefix of a good file is refused.
static void test_truncated(void)
{
    const char *header = "{" T("a", "F32", "[1]", 0, 4) "}";
    const char *whole = weights_path("whole.safetensors"), *part = weights_path("part.safetensors");
    write_test_file(whole, header, 4, -1);
    char error[256], bytes[512];
    FILE *file = fopen(whole, "rb");
    CU_ASSERT_FATAL(file != NULL);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    for (size_t cut = 0; cut < size; cut++) {
        write_test_bytes(part, bytes, cut);
        struct tensor_set *set = tensors_open(part, error, sizeof error);
        CU_ASSERT_PTR_NULL(set);
        tensors_close(set);
    }
    struct tensor_set *set = tensors_open(whole, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT_EQUAL(tensors_count(set), 1);
    tensors_close(set);
}

static void test_good(void)
{
    const char *path = weights_path("good.safetensors");
    write_test_file(path,
                    "{\"__metadata__\":{\"format\":\"pt\"}," T("b", "F32", "[]", 8, 12) "," T(
                        "a", "BF16", "[2,2]", 0, 8) "," T("none", "U8", "[0,7]", 8, 8) "}    ",
                    12, -1);
    char error[256] = "";
    struct tensor_set *set = tensors_open(path, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT_EQUAL(tensors_count(set), 3);
    const struct tensor *a = tensors_find(set, "a"), *b = tensors_find(set, "b");
    CU_ASSERT_FATAL(a && b && !tensors_find(set, "c") && !tensors_find(set, "__metadata__"));
    CU_ASSERT(a->dims == 2 && a->shape[0] == 2 && a->shape[1] == 2 && a->bytes == 8 && !strcmp(a->dtype, "BF16"));
    CU_ASSERT(b->dims == 0 && b->bytes == 4 && (const char *)b->data == (const char *)a->data + 8);
    CU_ASSERT_EQUAL(tensors_find(set, "none")->bytes, 0);
    tensors_close(set);
    write_test_file(path, "{}", 0, -1);
    set = tensors_open(path, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT_EQUAL(tensors_count(set), 0);
    CU_ASSERT_PTR_NULL(tensors_find(set, "a"));
    tensors_close(set);
}

static void expect_index(const char *index, const char *message, int cause)
{
    char error[512] = "";
    write_test_bytes(weights_path("model/model.safetensors.index.json"), index, strlen(index));
    struct tensor_set *set = tensors_open(weights_path("model"), error, sizeof error);
    int found = errno;
    if (set || !strstr(error, message) || found != cause) {
        fprintf(stderr, "index %s: `%s` (%d), expected `%s`\n", index, error, found, message);
        CU_FAIL("index");
    }
    tensors_close(set);
}

static void test_index(void)
{
    mkdir(weights_path("model"), 0777);
    char error[512] = "";
    CU_ASSERT_PTR_NULL(tensors_open(weights_path("model"), error, sizeof error));
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "neither"));
    write_test_file(weights_path("model/model.safetensors"), "{" T("only", "F32", "[1]", 0, 4) "}", 4, -1);
    struct tensor_set *set = tensors_open(weights_path("model"), error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT_PTR_NOT_NULL(tensors_find(set, "only"));
    tensors_close(set);

    write_test_file(weights_path("model/one.safetensors"),
                    "{" T("a", "F32", "[1]", 0, 4) "," T("b", "F32", "[2]", 4, 12) "}", 12, -1);
    write_test_file(weights_path("model/two.safetensors"),
                    "{" T("b", "F32", "[1]", 0, 4) "," T("c", "F32", "[1]", 4, 8) "}", 8, -1);
    const char *index = "{\"metadata\":{},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}";
    write_test_bytes(weights_path("model/model.safetensors.index.json"), index, strlen(index));
    static const char *const names[] = {"model", "model/model.safetensors.index.json"}; // the folder, or the index itself
    for (int i = 0; i < 2; i++) {
        set = tensors_open(weights_path(names[i]), error, sizeof error);
        CU_ASSERT_PTR_NOT_NULL_FATAL(set);
        CU_ASSERT_EQUAL(tensors_count(set), 2); // `c` and one's `b` are strays
        CU_ASSERT_EQUAL(tensors_find(set, "b")->bytes, 4);
        CU_ASSERT_PTR_NULL(tensors_find(set, "c"));
        tensors_close(set);
    }

    // a shard between whose tensors another's stand is opened once, its tensors all found
    const char *apart = "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\",\"b\":\"one.safetensors\"}}";
    write_test_bytes(weights_path("model/model.safetensors.index.json"), apart, strlen(apart));
    set = tensors_open(weights_path("model"), error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    CU_ASSERT(tensors_count(set) == 3 && tensors_find(set, "a") && tensors_find(set, "c"));
    CU_ASSERT_EQUAL(tensors_find(set, "b")->bytes, 8);
    tensors_close(set);

    expect_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"z\":\"one.safetensors\"}}",
                 "one.safetensors: tensor `z` is missing", 0);
    expect_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"d\":\"three.safetensors\"}}",
                 "three.safetensors: missing shard", ENOENT);
    expect_index("{\"weight_map\":{\"a\":\"../good.safetensors\"}}", "tensor `a` is assigned to no file", 0);
    expect_index("{\"weight_map\":{\"a\":\"..\"}}", "tensor `a` is assigned to no file", 0);
    expect_index("{\"weight_map\":{\"a\":7}}", "tensor `a` is assigned to no file", 0);
    expect_index("{\"weight_map\":[]}", "no weight_map", 0);
    expect_index("{}", "no weight_map", 0);
    expect_index("", "not valid JSON", 0);
    expect_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}", "duplicate", 0);
}

static void test_write(void)
{
    const char *path = weights_path("written.safetensors");
    float values[6] = {0, 1, 2, 3, 4, 5};
    int64_t offsets[2] = {0, 3};
    struct tensor tensors[2] = {
        {.name = "hidden \"states\"",
         .dtype = "F32",
         .dims = 2,
         .shape = {3, 2},
         .data = values,
         .bytes = sizeof values},
        {.name = "rank_offsets", .dtype = "I64", .dims = 1, .shape = {2}, .data = offsets, .bytes = sizeof offsets}};
    char error[256] = "";
    CU_ASSERT(tensors_write(path, tensors, 2, error, sizeof error));
    CU_ASSERT(tensors_write(path, tensors, 2, error, sizeof error)); // over an older file
    struct tensor_set *set = tensors_open(path, error, sizeof error);
    CU_ASSERT_PTR_NOT_NULL_FATAL(set);
    const struct tensor *read = tensors_find(set, "hidden \"states\"");
    CU_ASSERT_FATAL(read && read->bytes == sizeof values && read->dims == 2 && read->shape[0] == 3);
    CU_ASSERT(!memcmp(read->data, values, sizeof values));
    CU_ASSERT_EQUAL((uintptr_t)read->data % 8, 0);
    CU_ASSERT(!memcmp(tensors_find(set, "rank_offsets")->data, offsets, sizeof offsets));
    tensors_close(set);
    tensors[1].bytes = 8;
    CU_ASSERT_FALSE(tensors_write(path, tensors, 2, error, sizeof error));
    CU_ASSERT_PTR_NOT_NULL(strstr(error, "rank_offsets"));
    CU_ASSERT_FALSE(tensors_write(weights_path("no/such/folder"), tensors, 1, error, sizeof error));
    CU_ASSERT(tensors_write("/dev/null", tensors, 1, error, sizeof error));
    struct stat info;
    CU_ASSERT(stat("/dev/null", &info) == 0 && S_ISCHR(info.st_mode));
    if (access("/dev/full", W_OK) == 0) {
        CU_ASSERT_FALSE(tensors_write("/dev/full", tensors, 1, error, sizeof error));
        CU_ASSERT_PTR_NOT_NULL(strstr(error, "No space"));
    }
}

/// What a process that touches `at` ends with, as wait has it; what it says on standard error.
static int touch(const volatile uint8_t *at, char *said, size_t size)
{
    int channel[2], status = -1;
    CU_ASSERT_EQUAL_FATAL(pipe(channel), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(channel[1], STDERR_FILENO);
        mapped_tell_loss("a program");
        _exit(*at ? 40 : 41);
    }
    close(channel[1]);
    ssize_t got = 0;
    for (ssize_t more = 1; more > 0 && (size_t)got + 1 < size; got += more > 0 ? more : 0)
        more = read(channel[0], said + got, size - 1 - (size_t)got);
    said[got] = 0;
    close(channel[0]);
    waitpid(child, &status, 0);
    return status;
}

static void test_lost(void)
{
    enum { BYTES = 1 << 14 };
    static const uint8_t zeros[BYTES];
    const char *path = weights_path("lost"), *kept = weights_path("kept");
    char said[512], expected[400];
    write_test_bytes(path, zeros, BYTES);
    write_test_bytes(kept, zeros, BYTES);
    int lost_file = open(path, O_RDWR), kept_file = open(kept, O_RDWR);
    uint8_t *other = mapped_open(kept_file, BYTES, kept), *map = mapped_open(lost_file, BYTES, path);
    CU_ASSERT_FATAL(other && map);
    CU_ASSERT_EQUAL(WEXITSTATUS(touch(map + BYTES - 1, said, sizeof said)), 41);
    CU_ASSERT_EQUAL(ftruncate(lost_file, 0), 0);
    int status = touch(map + BYTES - 1, said, sizeof said);
    snprintf(expected, sizeof expected, "a program: error: %s: was cut off, or cannot be read any more, while it was in use\n", path);
    CU_ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    CU_ASSERT_STRING_EQUAL(said, expected);
    mapped_close(map, BYTES);
    // What is nobody's file ends the process as it always does.
    map = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, lost_file, 0);
    CU_ASSERT_FATAL(map != MAP_FAILED);
    status = touch(map, said, sizeof said);
    CU_ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    CU_ASSERT_STRING_EQUAL(said, "");
    munmap(map, BYTES);
    mapped_close(other, BYTES);
    close(lost_file);
    close(kept_file);
}

void add_file_tests(CU_pSuite suite)
{
    CU_add_test(suite, "damaged safetensors files", test_damaged);
    CU_add_test(suite, "truncated safetensors files", test_truncated);
    CU_add_test(suite, "mutated safetensors files", test_mutated);
    CU_add_test(suite, "good safetensors files", test_good);
    CU_add_test(suite, "sharded checkpoints", test_index);
    CU_add_test(suite, "writing", test_write);
    CU_add_test(suite, "cut off while in use", test_lost);
}
