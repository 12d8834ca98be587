/* The embeddable C reader under a fuzzer: one input is one file. libFuzzer calls these functions, or driver.c does.
 *
 * Inputs are changed at fields that the schema names (fields.h is made from it), and sealed again, so that most of them
 * pass the header; and at any byte, by whoever calls. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpack_reader.h"
#include "fields.h"

/* What the program that started this one reads: executions, inputs whose header and footer held, files that opened. */
static uint64_t own[3];
static volatile uint64_t *counts = own;

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *path = getenv("GPACK_FUZZ_COUNTS");
    (void)argc, (void)argv;
    if (path) {
        int file = open(path, O_RDWR);
        void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (shared == MAP_FAILED) abort();
        counts = (volatile uint64_t *)shared;
        close(file);
    }
    return 0;
}

static gpack_bytes whole; /* of the file */

static void touch(gpack_bytes bytes) { /* every byte that is handed out lies in the file */
    uint64_t start = (uint64_t)(uintptr_t)bytes.data - (uint64_t)(uintptr_t)whole.data;
    if (bytes.size && (start > whole.size || bytes.size > whole.size - start)) abort();
}

static void walk(const gpack_file *file) {
    gpack_table table;
    whole = file->bytes;
    for (uint32_t kind = 0; kind < 20; kind++) {
        GPackSectionEntryV1 entry;
        gpack_bytes payload;
        if (!gpack_find_section(file, kind, &entry, &payload)) touch(payload);
    }
    if (!gpack_tensors(file, &table)) {
        for (uint32_t i = 0; i < table.count && i < 64; i++) {
            gpack_tensor one, other;
            gpack_bytes slice;
            if (gpack_tensor_at(file, &table, i, &one)) continue;
            touch(one.name);
            if (one.data.data) touch(one.data);
            for (uint64_t e = 0; e < 8 && !gpack_expert(file, &one, e, &slice); e++) touch(slice);
            if (!gpack_expert(file, &one, UINT64_MAX, &slice)) abort(); /* no pack has so many */
            if (!gpack_find_tensor(file, &table, (const char *)one.name.data, one.name.size, &other) &&
                (other.name.size != one.name.size || memcmp(other.name.data, one.name.data, one.name.size)))
                abort(); /* what a search finds has the name that was asked for */
        }
    }
    if (!gpack_metadata(file, &table)) {
        for (uint32_t i = 0; i < table.count && i < 64; i++) {
            gpack_entry one, other;
            if (gpack_entry_at(&table, i, &one)) continue;
            touch(one.key), touch(one.value);
            if (!gpack_find_key(&table, (const char *)one.key.data, one.key.size, &other) &&
                (other.key.size != one.key.size || memcmp(other.key.data, one.key.data, one.key.size)))
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    gpack_file file;
    const char *broken = gpack_open(&file, data, size);
    counts[0]++;
    counts[1] += !broken || (strncmp(broken, "header.", 7) && strncmp(broken, "footer.", 7));
    counts[2] += !broken;
    if (!broken) walk(&file);
    return 0;
}

/* ---- mutation ---- */

static uint64_t state;

static uint64_t pick(uint64_t below) { /* xorshift64* */
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * UINT64_C(0x2545F4914F6CDD1D) % below;
}

static uint64_t interesting(uint64_t old, uint64_t size) {
    static const uint64_t numbers[] = {0, 1, 2, 7, 8, 63, 64, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0x80000000,
        0xffffffff, UINT64_C(1) << 53, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};
    switch (pick(6)) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return old ^ (UINT64_C(1) << pick(64));
    case 3: return size - pick(130);
    case 4: return pick(size + 1);
    default: return numbers[pick(sizeof numbers / sizeof *numbers)];
    }
}

/* Changes one field of a record that lies where the file says, as far as it says so. */
static void change_field(uint8_t *data, size_t size) {
    const fuzz_field *field = &fuzz_fields[pick(sizeof fuzz_fields / sizeof *fuzz_fields)];
    GPackHeaderV1 header;
    GPackSectionEntryV1 entry;
    uint64_t at = 0, entries, old = 0, value;
    memcpy(&header, data, sizeof header);
    entries = header.section_table_offset;
    if (field->place == FUZZ_FOOTER) at = size - sizeof(GPackFooterV1);
    else if (field->place != FUZZ_HEADER) {
        if (!header.section_count || entries > size || size - entries < sizeof entry) return;
        for (uint64_t tries = 0; tries < 16; tries++) {
            uint64_t found = entries + pick(header.section_count % 64 + 1) * sizeof entry;
            if (found > size - sizeof entry) continue;
            memcpy(&entry, data + found, sizeof entry);
            at = field->place == FUZZ_ENTRY ? found : entry.offset;
            if (field->place == FUZZ_ENTRY || entry.kind == field->kind) break;
        }
        if (field->place == FUZZ_ROW) at += field->base + pick(4) * field->stride;
    }
    if (at > size || size - at < (uint64_t)field->offset + field->width) return;
    memcpy(&old, data + at + field->offset, field->width);
    value = interesting(old, size);
    memcpy(data + at + field->offset, &value, field->width);
}

/* Makes magics, sizes, the pairs of header and footer, and the manifest's digest those that a reader expects. */
static void seal(uint8_t *data, size_t size) {
    GPackHeaderV1 header;
    GPackFooterV1 footer;
    memcpy(&header, data, sizeof header);
    memcpy(&footer, data + size - sizeof footer, sizeof footer);
    header.magic = GPACK_HEADER_V1_MAGIC, footer.footer_magic = GPACK_FOOTER_V1_MAGIC;
    header.format_version = header.min_reader_version = 1;
    header.total_file_size = size;
    memset(header.reserved, 0, sizeof header.reserved);
    if (header.manifest_size > size || header.manifest_offset > size - header.manifest_size) return;
    footer.manifest_offset = header.manifest_offset;
    footer.section_table_offset = header.section_table_offset;
    memcpy(data, &header, sizeof header);
    gpack_sha256(data + header.manifest_offset, header.manifest_size, footer.manifest_sha256);
    memcpy(data + size - sizeof footer, &footer, sizeof footer);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed) {
    state = seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
    pick(2);
    if (size < sizeof(GPackHeaderV1) + sizeof(GPackFooterV1) || !pick(5)) size = LLVMFuzzerMutate(data, size, max);
    else
        for (uint64_t times = 1 + pick(3); times; times--) change_field(data, size);
    if (size >= sizeof(GPackHeaderV1) + sizeof(GPackFooterV1) && pick(8)) seal(data, size);
    return size;
}
