// From an LLVM module to one movable block of native code: compile to an object, make sure it needs nothing from
// outside and refers to itself only relatively, then let ORC link it into a single buffer.
#include "emit.h"

#include <dlfcn.h>
#include <elf.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/OrcEE.h>
#include <llvm-c/Target.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/output.h"

enum { IMAGE_ALIGN = 4096 };

// Where ORC puts sections: one after the other in one buffer.
struct buffer {
    uint8_t *bytes;
    size_t size, capacity;
};

#define INITIALIZE(arch)                                                                                               \
    (LLVMInitialize##arch##TargetInfo(), LLVMInitialize##arch##Target(), LLVMInitialize##arch##TargetMC(),             \
     LLVMInitialize##arch##AsmPrinter())

static void initialize_targets(void)
{
    INITIALIZE(X86);
    INITIALIZE(AArch64);
}

static void no_memory(void)
{
    static const char text[] = "moecc: out of memory\n";
    output_clean();
    ssize_t told = write(STDERR_FILENO, text, sizeof text - 1);
    (void)told;
    _exit(EXIT_SYSTEM);
}

void codegen_cpu_exits_without_memory(void)
{
    // std::set_new_handler of the C++ library that LLVM brought: LLVM itself would call abort()
    void (*(*set_new_handler)(void (*)(void)))(void) =
        (void (*(*)(void (*)(void)))(void))dlsym(RTLD_DEFAULT, "_ZSt15set_new_handlerPFvvE");
    if (set_new_handler)
        set_new_handler(no_memory);
}

LLVMTargetMachineRef target_machine(struct emit *e)
{
    static pthread_once_t initialized = PTHREAD_ONCE_INIT;
    pthread_once(&initialized, initialize_targets);
    const char *triple = e->level->triple;
    LLVMTargetRef target;
    char *message = NULL;
    if (LLVMGetTargetFromTriple(triple, &target, &message))
        fatal(e->context, EXIT_SYSTEM, "LLVM has no code generator for %s: %s", triple, message);
    LLVMTargetMachineRef machine =
        LLVMCreateTargetMachine(target, triple, e->level->cpu, e->level->features, LLVMCodeGenLevelAggressive,
                                LLVMRelocPIC, LLVMCodeModelSmall);
    LLVMSetTarget(e->module, triple);
    LLVMTargetDataRef layout = LLVMCreateTargetDataLayout(machine);
    LLVMSetModuleDataLayout(e->module, layout);
    LLVMDisposeTargetData(layout);
    return machine;
}

// Places relative to each other, or (aarch64) to the 4096-byte page they are in: an image begins on one.
static bool is_relative(unsigned machine, uint32_t type)
{
    static const uint32_t aarch64[] = {R_AARCH64_PREL32, R_AARCH64_CALL26, R_AARCH64_JUMP26,
                                       R_AARCH64_ADR_PREL_PG_HI21, R_AARCH64_ADD_ABS_LO12_NC,
                                       R_AARCH64_LDST8_ABS_LO12_NC, R_AARCH64_LDST16_ABS_LO12_NC,
                                       R_AARCH64_LDST32_ABS_LO12_NC, R_AARCH64_LDST64_ABS_LO12_NC,
                                       R_AARCH64_LDST128_ABS_LO12_NC};
    if (machine == EM_X86_64)
        return type == R_X86_64_PC32 || type == R_X86_64_PLT32;
    for (size_t i = 0; i < sizeof aarch64 / sizeof *aarch64; i++)
        if (type == aarch64[i])
            return true;
    return false;
}

static void check_relocations(struct emit *e, unsigned machine, const Elf64_Rela *relocations, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t type = (uint32_t)ELF64_R_TYPE(relocations[i].r_info);
        if (!is_relative(machine, type))
            fatal(e->context, EXIT_BUG, "generated code has a relocation of type %u", type);
    }
}

static void check_symbols(struct emit *e, const Elf64_Sym *symbols, size_t count, const char *names)
{
    for (size_t i = 1; i < count; i++)
        if (symbols[i].st_shndx == SHN_UNDEF)
            fatal(e->context, EXIT_BUG, "generated code needs the function %s", names + symbols[i].st_name);
}

// The object must link with nothing and must not know its address. Returns an upper bound of its size when linked.
static size_t check_object(struct emit *e, const char *object)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)object;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(object + header->e_shoff);
    size_t size = 0;
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &sections[i];
        const char *content = object + section->sh_offset;
        if (section->sh_flags & SHF_ALLOC)
            size += section->sh_size + section->sh_addralign + 256;
        if (section->sh_type == SHT_RELA && (sections[section->sh_info].sh_flags & SHF_ALLOC))
            check_relocations(e, header->e_machine, (const Elf64_Rela *)content, section->sh_size / sizeof(Elf64_Rela));
        if (section->sh_type == SHT_SYMTAB)
            check_symbols(e, (const Elf64_Sym *)content, section->sh_size / sizeof(Elf64_Sym),
                          object + sections[section->sh_link].sh_offset);
    }
    return size;
}

static uint8_t *allocate(struct buffer *buffer, size_t size, size_t align)
{
    size_t at = (buffer->size + align - 1) / align * align;
    if (at + size > buffer->capacity)
        return NULL;
    buffer->size = at + size;
    return buffer->bytes + at;
}

static uint8_t *allocate_code(void *buffer, uintptr_t size, unsigned align, unsigned id, const char *name)
{
    (void)id, (void)name;
    return allocate(buffer, size, align < 64 ? 64 : align);
}

static uint8_t *allocate_data(void *buffer, uintptr_t size, unsigned align, unsigned id, const char *name,
                              LLVMBool read_only)
{
    (void)id, (void)name, (void)read_only;
    return allocate(buffer, size, align < 64 ? 64 : align);
}

static LLVMBool finalize(void *buffer, char **message)
{
    (void)buffer, (void)message; // nothing runs from here
    return false;
}

static void *use_buffer(void *buffer)
{
    return buffer;
}

static void ignore(void *buffer)
{
    (void)buffer;
}

static LLVMOrcObjectLayerRef make_linker(void *buffer, LLVMOrcExecutionSessionRef session, const char *triple)
{
    (void)triple;
    return LLVMOrcCreateRTDyldObjectLinkingLayerWithMCJITMemoryManagerLikeCallbacks(
        session, buffer, use_buffer, ignore, allocate_code, allocate_data, finalize, ignore);
}

static void check_error(struct emit *e, LLVMErrorRef error)
{
    if (!error)
        return;
    char *message = LLVMGetErrorMessage(error);
    const char *copy = context_printf(e->context, "%s", message);
    LLVMDisposeErrorMessage(message);
    fatal(e->context, EXIT_BUG, "linking generated code: %s", copy);
}

static void link_object(struct emit *e, LLVMMemoryBufferRef object, struct buffer *buffer, const char *const *names,
                        size_t count, int64_t *offsets)
{
    LLVMOrcLLJITBuilderRef builder = LLVMOrcCreateLLJITBuilder();
    LLVMOrcLLJITBuilderSetObjectLinkingLayerCreator(builder, make_linker, buffer);
    LLVMOrcLLJITRef jit;
    check_error(e, LLVMOrcCreateLLJIT(&jit, builder));
    check_error(e, LLVMOrcLLJITAddObjectFile(jit, LLVMOrcLLJITGetMainJITDylib(jit), object));
    for (size_t i = 0; i < count; i++) {
        LLVMOrcExecutorAddress address;
        check_error(e, LLVMOrcLLJITLookup(jit, &address, names[i]));
        offsets[i] = (int64_t)(address - (uintptr_t)buffer->bytes);
    }
    check_error(e, LLVMOrcDisposeLLJIT(jit));
}

void link_image(struct emit *e, LLVMTargetMachineRef machine, const char *const *names, size_t count, void **image,
                size_t *image_bytes, int64_t *offsets)
{
    char *message = NULL;
    LLVMMemoryBufferRef object;
    if (LLVMTargetMachineEmitToMemoryBuffer(machine, e->module, LLVMObjectFile, &message, &object))
        fatal(e->context, EXIT_BUG, "code generation: %s", message);
    struct buffer buffer = {.capacity = check_object(e, LLVMGetBufferStart(object)) + IMAGE_ALIGN};
    buffer.capacity = (buffer.capacity + IMAGE_ALIGN - 1) / IMAGE_ALIGN * IMAGE_ALIGN;
    buffer.bytes = aligned_alloc(IMAGE_ALIGN, buffer.capacity);
    if (!buffer.bytes) {
        LLVMDisposeMemoryBuffer(object);
        fatal(e->context, EXIT_SYSTEM, "out of memory");
    }
    memset(buffer.bytes, 0xcc, buffer.capacity); // int3 between sections
    link_object(e, object, &buffer, names, count, offsets);
    *image = buffer.bytes;
    *image_bytes = (buffer.size + 63) / 64 * 64;
}
