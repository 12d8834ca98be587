/* Opens every file that is named on standard input and prints what the embeddable reader says of it, a line to a file.
 *
 * The bytes lie in a buffer of exactly their size, so that a sanitizer sees every step beyond. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpack_reader.h"

static uint64_t sum(uint64_t all, gpack_bytes bytes) { /* FNV-1a over all that is handed out */
    for (uint64_t i = 0; i < bytes.size; i++) all = (all ^ bytes.data[i]) * UINT64_C(0x100000001b3);
    return all;
}

static void walk(const gpack_file *file) {
    gpack_table table;
    uint64_t all = UINT64_C(0xcbf29ce484222325);
    uint32_t tensors = 0, entries = 0;
    const char *broken = gpack_tensors(file, &table);
    for (uint32_t i = 0; !broken && i < table.count; i++) {
        gpack_tensor one, other;
        gpack_bytes slice;
        broken = gpack_tensor_at(file, &table, i, &one);
        if (broken) break;
        all = sum(sum(all, one.name), one.data);
        for (uint64_t e = 0; e < 64 && !gpack_expert(file, &one, e, &slice); e++) all = sum(all, slice);
        broken = gpack_find_tensor(file, &table, (const char *)one.name.data, one.name.size, &other);
        if (!broken && other.name.data != one.name.data) broken = "another";
        tensors++;
    }
    if (!broken) broken = gpack_metadata(file, &table);
    for (uint32_t i = 0; !broken && i < table.count; i++) {
        gpack_entry one, other;
        broken = gpack_entry_at(&table, i, &one);
        if (!broken) broken = gpack_find_key(&table, (const char *)one.key.data, one.key.size, &other);
        if (!broken) all = sum(sum(all, one.key), one.value);
        entries++;
    }
    printf("ok %u %u %016llx %s\n", tensors, entries, (unsigned long long)all, broken ? broken : "-");
}

int main(void) {
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        gpack_file file;
        const char *broken;
        FILE *in;
        long size;
        uint8_t *data;
        path[strcspn(path, "\n")] = 0;
        in = fopen(path, "rb");
        if (!in || fseek(in, 0, SEEK_END) || (size = ftell(in)) < 0) return 2;
        rewind(in);
        data = (uint8_t *)malloc((size_t)size + !size);
        if (!data || fread(data, 1, (size_t)size, in) != (size_t)size) return 2;
        fclose(in);
        broken = gpack_open(&file, data, (uint64_t)size);
        if (broken) printf("refused %s\n", broken);
        else walk(&file);
        free(data);
    }
    return 0;
}
