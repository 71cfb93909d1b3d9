// Reads safetensors files by mmap. The bytes are untrusted: every size, offset and shape is checked before use, and every
// complaint names the file and the tensor. A checkpoint directory's index decides which shard's copy of a tensor counts.
#include "runtime/weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/mapped.h"

static const uint64_t HEADER_LIMIT = 100000000; // bytes, as in the reference implementation

struct shard {
    char *path;
    const char *base; // the file's name inside path
    uint8_t *map;
    size_t bytes;
};

struct tensor_set {
    struct shard *shards;
    size_t shard_count;
    struct tensor *tensors;
    size_t count, capacity;
    uint32_t *buckets;   // open addressing: index + 1, 0 = empty
    size_t bucket_count; // a power of two
    char *error;
    size_t error_size;
};

/// Writes the message and sets errno to `cause` (0: the content is at fault). Control characters from file content do not
/// reach a terminal.
__attribute__((format(printf, 3, 4))) static bool fail(struct tensor_set *set, int cause, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (set->error_size)
        vsnprintf(set->error, set->error_size, format, args);
    va_end(args);
    for (char *c = set->error; set->error_size && *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    errno = cause;
    return false;
}

static bool no_memory(struct tensor_set *set)
{
    return fail(set, ENOMEM, "out of memory");
}

// --- files ----------------------------------------------------------------------------------------------------------

static bool map_file(struct tensor_set *set, const char *path, uint8_t **map, size_t *bytes)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // of a pipe that nobody writes to, no waiting
    struct stat info;
    if (file < 0 || fstat(file, &info) != 0) {
        int cause = errno;
        if (file >= 0)
            close(file);
        return fail(set, cause, "%s: %s", path, strerror(cause));
    }
    void *mapping = NULL;
    int cause = 0;
    if (!S_ISREG(info.st_mode))
        cause = EINVAL;
    else if (info.st_size > 0) {
        mapping = mapped_open(file, (size_t)info.st_size, path);
        cause = mapping ? 0 : errno;
    }
    close(file);
    if (cause)
        return fail(set, cause, "%s: %s", path, cause == EINVAL ? "not a regular file" : strerror(cause));
    *map = mapping;
    *bytes = (size_t)info.st_size;
    return true;
}

static struct shard *open_shard(struct tensor_set *set, const char *folder, const char *base)
{
    struct shard *grown = realloc(set->shards, (set->shard_count + 1) * sizeof *grown);
    if (!grown)
        return no_memory(set), NULL;
    set->shards = grown;
    struct shard *shard = &grown[set->shard_count];
    *shard = (struct shard){0};
    int length = folder ? asprintf(&shard->path, "%s/%s", folder, base) : asprintf(&shard->path, "%s", base);
    if (length < 0)
        return no_memory(set), NULL;
    set->shard_count++;
    shard->base = folder ? shard->path + strlen(folder) + 1 : shard->path;
    return map_file(set, shard->path, &shard->map, &shard->bytes) ? shard : NULL;
}

// --- one file's header ----------------------------------------------------------------------------------------------

struct extent {
    uint64_t begin, end;
    const char *name;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static bool read_shape(struct tensor_set *set, const char *path, const char *name, const json_t *shape,
                       struct tensor *tensor)
{
    if (!json_is_array(shape))
        return fail(set, 0, "%s: tensor `%s` has no shape", path, name);
    if (json_array_size(shape) > TENSOR_DIMS)
        return fail(set, 0, "%s: tensor `%s` has %zu dimensions, more than %d", path, name, json_array_size(shape),
                    TENSOR_DIMS);
    tensor->dims = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < tensor->dims; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0)
            return fail(set, 0, "%s: tensor `%s`: dimension %u of its shape is not a count", path, name, i);
        tensor->shape[i] = json_integer_value(extent);
    }
    return true;
}

/// Fills a tensor and its extent from its entry of the header; `data` is the block behind the header.
static bool read_entry(struct tensor_set *set, const struct shard *shard, const char *name, const json_t *entry,
                       const uint8_t *data, uint64_t data_bytes, struct tensor *tensor, struct extent *extent)
{
    const char *path = shard->path;
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    *tensor = (struct tensor){.file = path};
    if (!dtype || strlen(dtype) >= sizeof tensor->dtype || element_bytes(dtype) == 0)
        return fail(set, 0, "%s: tensor `%s` has an unknown dtype `%.20s`", path, name, dtype ? dtype : "");
    strcpy(tensor->dtype, dtype);
    if (!read_shape(set, path, name, json_object_get(entry, "shape"), tensor))
        return false;
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return fail(set, 0, "%s: tensor `%s` has bad data_offsets", path, name);
    *extent = (struct extent){(uint64_t)json_integer_value(begin), (uint64_t)json_integer_value(end), name};
    if (extent->end > data_bytes)
        return fail(set, 0, "%s: truncated: tensor `%s` ends at byte %" PRIu64 " of %" PRIu64, path, name, extent->end,
                    data_bytes);
    int64_t bytes = tensor_bytes(dtype, tensor->shape, tensor->dims);
    if (bytes < 0)
        return fail(set, 0, "%s: tensor `%s`: its shape is beyond any memory", path, name);
    if ((uint64_t)bytes != extent->end - extent->begin)
        return fail(set, 0, "%s: tensor `%s` has %" PRIu64 " bytes, but its dtype and shape need %" PRId64, path, name,
                    extent->end - extent->begin, bytes);
    tensor->bytes = (size_t)bytes;
    tensor->data = data + extent->begin;
    tensor->name = strdup(name);
    return tensor->name ? true : no_memory(set);
}

/// The data block must be covered exactly: no overlap, no hole, nothing behind the last tensor.
static bool check_extents(struct tensor_set *set, const char *path, struct extent *extents, size_t count,
                          uint64_t data_bytes)
{
    if (count)
        qsort(extents, count, sizeof *extents, compare_extents);
    uint64_t covered = 0;
    for (size_t i = 0; i < count; i++) {
        if (extents[i].begin < covered)
            return fail(set, 0, "%s: tensors `%s` and `%s` overlap", path, extents[i - 1].name, extents[i].name);
        if (extents[i].begin > covered)
            return fail(set, 0, "%s: a hole of %" PRIu64 " bytes before tensor `%s`", path, extents[i].begin - covered,
                        extents[i].name);
        covered = extents[i].end;
    }
    if (covered != data_bytes)
        return fail(set, 0, "%s: %" PRIu64 " bytes after the last tensor%s%s%s", path, data_bytes - covered,
                    count ? " `" : "", count ? extents[count - 1].name : "", count ? "`" : "");
    return true;
}

static bool read_entries(struct tensor_set *set, const struct shard *shard, json_t *header, uint64_t header_bytes)
{
    size_t entries = json_object_size(header);
    if (set->count + entries > set->capacity) {
        struct tensor *grown = realloc(set->tensors, (set->count + entries) * sizeof *grown);
        if (!grown)
            return no_memory(set);
        set->tensors = grown;
        set->capacity = set->count + entries;
    }
    struct extent *extents = calloc(entries + 1, sizeof *extents);
    if (!extents)
        return no_memory(set);
    const uint8_t *data = shard->map + 8 + header_bytes;
    uint64_t data_bytes = shard->bytes - 8 - header_bytes;
    size_t count = 0;
    bool fine = true;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        fine = json_is_object(entry)
                   ? read_entry(set, shard, name, entry, data, data_bytes, &set->tensors[set->count], &extents[count])
                   : fail(set, 0, "%s: tensor `%s` is not described", shard->path, name);
        if (!fine)
            break;
        set->count++;
        count++;
    }
    fine = fine && check_extents(set, shard->path, extents, count, data_bytes);
    int cause = errno;
    free(extents);
    errno = cause;
    return fine;
}

static json_t *parse_json(struct tensor_set *set, const char *path, const char *what, const uint8_t *text, size_t bytes)
{
    json_error_t error;
    json_t *json = json_loadb((const char *)text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (json && json_is_object(json))
        return json;
    if (json)
        fail(set, 0, "%s: %s is not a JSON object", path, what);
    else if (json_error_code(&error) == json_error_out_of_memory)
        no_memory(set);
    else
        fail(set, 0, "%s: %s is not valid JSON: byte %d: %s", path, what, error.position, error.text);
    json_decref(json);
    return NULL;
}

static bool read_header(struct tensor_set *set, const struct shard *shard)
{
    uint64_t header_bytes = 0;
    if (shard->bytes < 8)
        return fail(set, 0, "%s: truncated: %zu bytes, no safetensors header", shard->path, shard->bytes);
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | shard->map[i];
    if (header_bytes > HEADER_LIMIT)
        return fail(set, 0, "%s: not a safetensors file: a header of %" PRIu64 " bytes", shard->path, header_bytes);
    if (header_bytes > shard->bytes - 8)
        return fail(set, 0, "%s: truncated: its header has %" PRIu64 " bytes, the file %zu", shard->path, header_bytes,
                    shard->bytes);
    json_t *header = parse_json(set, shard->path, "its header", shard->map + 8, (size_t)header_bytes);
    if (!header)
        return false;
    bool fine = read_entries(set, shard, header, header_bytes);
    int cause = errno;
    json_decref(header);
    errno = cause;
    return fine;
}

// --- names ----------------------------------------------------------------------------------------------------------

static size_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return (size_t)(hash ^ hash >> 32);
}

static uint32_t *find_bucket(const struct tensor_set *set, const char *name)
{
    size_t at = hash_name(name) & (set->bucket_count - 1);
    while (set->buckets[at] && strcmp(set->tensors[set->buckets[at] - 1].name, name))
        at = (at + 1) & (set->bucket_count - 1);
    return &set->buckets[at];
}

static bool hash_names(struct tensor_set *set)
{
    set->bucket_count = 16;
    while (set->bucket_count < 2 * set->count)
        set->bucket_count *= 2;
    set->buckets = calloc(set->bucket_count, sizeof *set->buckets);
    if (!set->buckets || set->count >= UINT32_MAX)
        return no_memory(set);
    for (size_t i = 0; i < set->count; i++)
        *find_bucket(set, set->tensors[i].name) = (uint32_t)i + 1;
    return true;
}

// --- checkpoints of several files -----------------------------------------------------------------------------------

/// Drops the tensors that the index does not assign to this shard; `first` is the shard's first tensor.
static void drop_strays(struct tensor_set *set, const json_t *weight_map, const struct shard *shard, size_t first)
{
    size_t kept = first;
    for (size_t i = first; i < set->count; i++) {
        const char *assigned = json_string_value(json_object_get(weight_map, set->tensors[i].name));
        if (assigned && !strcmp(assigned, shard->base))
            set->tensors[kept++] = set->tensors[i];
        else
            free((char *)(uintptr_t)set->tensors[i].name);
    }
    set->count = kept;
}

static bool open_assigned(struct tensor_set *set, const char *folder, const char *index, const json_t *weight_map)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)weight_map, name, value)
    {
        const char *base = json_string_value(value);
        if (!base || !*base || strchr(base, '/') || !strcmp(base, ".") || !strcmp(base, ".."))
            return fail(set, 0, "%s: tensor `%s` is assigned to no file of this directory", index, name);
        bool open = false;
        for (size_t i = 0; i < set->shard_count && !open; i++)
            open = !strcmp(set->shards[i].base, base);
        if (open)
            continue;
        size_t first = set->count;
        const struct shard *shard = open_shard(set, folder, base);
        if (!shard && errno == ENOENT)
            return fail(set, ENOENT, "%s/%s: missing shard, named by %s for tensor `%s`", folder, base,
                        strrchr(index, '/') + 1, name);
        if (!shard || !read_header(set, shard))
            return false;
        drop_strays(set, weight_map, shard, first);
    }
    return true;
}

static bool check_assigned(struct tensor_set *set, const char *folder, const char *index, json_t *weight_map)
{
    const char *name;
    json_t *value;
    json_object_foreach(weight_map, name, value) if (!tensors_find(set, name)) return fail(
        set, 0, "%s/%s: tensor `%s` is missing, assigned to this file by %s", folder, json_string_value(value), name,
        strrchr(index, '/') + 1);
    return true;
}

static bool open_index(struct tensor_set *set, const char *folder, const char *index)
{
    uint8_t *map = NULL;
    size_t bytes = 0;
    if (!map_file(set, index, &map, &bytes))
        return false;
    json_t *json = NULL;
    if (bytes > HEADER_LIMIT)
        fail(set, 0, "%s: an index of %zu bytes", index, bytes);
    else
        json = parse_json(set, index, "the index", map ? map : (const uint8_t *)"", bytes);
    int cause = errno;
    mapped_close(map, bytes);
    errno = cause;
    if (!json)
        return false;
    json_t *weight_map = json_object_get(json, "weight_map");
    bool fine = json_is_object(weight_map) ? open_assigned(set, folder, index, weight_map) && hash_names(set) &&
                                                 check_assigned(set, folder, index, weight_map)
                                           : fail(set, 0, "%s: no weight_map in the index", index);
    cause = errno;
    json_decref(json);
    errno = cause;
    return fine;
}

static bool open_single(struct tensor_set *set, const char *folder, const char *base)
{
    const struct shard *shard = open_shard(set, folder, base);
    return shard && read_header(set, shard) && hash_names(set);
}

static bool open_index_alone(struct tensor_set *set, const char *index)
{
    const char *slash = strrchr(index, '/');
    char *folder = slash ? strndup(index, (size_t)(slash - index)) : strdup("."), *inside = NULL;
    bool fine = folder && asprintf(&inside, "%s/%s", *folder ? folder : "/", slash ? slash + 1 : index) >= 0;
    fine = fine ? open_index(set, folder, inside) : no_memory(set);
    int cause = errno;
    free(folder);
    free(inside);
    errno = cause;
    return fine;
}

static bool is_index(const char *path)
{
    size_t length = strlen(path);
    return length > 5 && !strcmp(path + length - 5, ".json");
}

static bool open_folder(struct tensor_set *set, const char *folder)
{
    char *index = NULL, *single = NULL;
    bool fine = asprintf(&index, "%s/model.safetensors.index.json", folder) >= 0 &&
                asprintf(&single, "%s/model.safetensors", folder) >= 0;
    if (!fine)
        no_memory(set);
    else if (access(index, F_OK) == 0)
        fine = open_index(set, folder, index);
    else if (access(single, F_OK) == 0)
        fine = open_single(set, folder, "model.safetensors");
    else
        fine = fail(set, ENOENT, "%s: neither model.safetensors nor model.safetensors.index.json", folder);
    int cause = errno;
    free(index);
    free(single);
    errno = cause;
    return fine;
}

// --- the interface --------------------------------------------------------------------------------------------------

struct tensor_set *tensors_open(const char *path, char *error, size_t size)
{
    struct tensor_set *set = calloc(1, sizeof *set);
    if (!set) {
        snprintf(error, size, "out of memory");
        return NULL;
    }
    set->error = error;
    set->error_size = size;
    struct stat info;
    bool fine;
    if (stat(path, &info) != 0)
        fine = fail(set, errno, "%s: %s", path, strerror(errno));
    else
        fine = S_ISDIR(info.st_mode) ? open_folder(set, path)
               : is_index(path)      ? open_index_alone(set, path)
                                     : open_single(set, NULL, path);
    set->error = NULL;
    set->error_size = 0;
    if (fine)
        return set;
    int cause = errno;
    tensors_close(set);
    errno = cause;
    return NULL;
}

const struct tensor *tensors_find(const struct tensor_set *set, const char *name)
{
    uint32_t found = *find_bucket(set, name);
    return found ? &set->tensors[found - 1] : NULL;
}

size_t tensors_count(const struct tensor_set *set)
{
    return set->count;
}

const struct tensor *tensors_at(const struct tensor_set *set, size_t index)
{
    return &set->tensors[index];
}

void tensors_close(struct tensor_set *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->count; i++)
        free((char *)(uintptr_t)set->tensors[i].name);
    for (size_t i = 0; i < set->shard_count; i++) {
        mapped_close(set->shards[i].map, set->shards[i].bytes);
        free(set->shards[i].path);
    }
    free(set->shards);
    free(set->tensors);
    free(set->buckets);
    free(set);
}
