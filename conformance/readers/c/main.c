/** A reader of GPACK over the generated header schema/gpack.h: one process to a file, `reader FILE`.
 *
 * It checks what the schema says of single structs, and prints the dump (exit status 0) or why the file is rejected
 * (exit status 1). Every other status is a fault of this program or of the system. No blob is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpack_dump.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the structs of gpack.h are read as they lie in the file: little-endian"
#endif

static void fail(const char *what) {
    perror(what);
    exit(2);
}

void hold(reader *r, const char *rule) {
    if (rule) {
        r->rule = rule;
        longjmp(r->refused, 1);
    }
}

void read_at(reader *r, uint64_t offset, void *into, size_t count) {
    uint64_t size = (uint64_t)r->file_size;
    if (offset > size || count > size - offset) hold(r, "header.complete");
    for (size_t done = 0; done < count;) {
        ssize_t got = pread(r->file, (char *)into + done, count - done, (off_t)(offset + done));
        if (got < 0 && errno != EINTR) fail("pread");
        if (got == 0) hold(r, "header.complete"); /* the file shrank */
        if (got > 0) done += (size_t)got;
    }
}

static void walk_section(reader *r, uint64_t place) {
    GPackSectionEntryV1 entry;
    read_at(r, place, &entry, sizeof entry);
    hold(r, check_gpack_section_entry_v1(&entry, r->file_size, 0));
    json_open(r, '{');
    json_key(r, "entry");
    dump_gpack_section_entry_v1(r, &entry);
    r->section = entry.offset;
    r->section_size = (int64_t)entry.size;
    walk_body(r, entry.kind);
    json_close(r, '}');
}

static void walk(reader *r) {
    GPackHeaderV1 header;
    GPackFooterV1 footer;
    r->first = 1;
    read_at(r, 0, &header, sizeof header);
    hold(r, check_gpack_header_v1(&header, r->file_size, 0));
    read_at(r, header.total_file_size - sizeof footer, &footer, sizeof footer);
    hold(r, check_gpack_footer_v1(&footer, r->file_size, 0));
    json_open(r, '{');
    json_key(r, "header");
    dump_gpack_header_v1(r, &header);
    json_key(r, "footer");
    dump_gpack_footer_v1(r, &footer);
    json_key(r, "sections");
    json_open(r, '[');
    for (uint32_t i = 0; i < header.section_count; i++) {
        walk_section(r, header.section_table_offset + i * sizeof(GPackSectionEntryV1));
    }
    json_close(r, ']');
    json_close(r, '}');
}

int main(int count, char **arguments) {
    static reader r;
    struct stat status;
    if (count != 2) {
        fputs("usage: reader FILE\n", stderr);
        return 2;
    }
    r.file = open(arguments[1], O_RDONLY);
    if (r.file < 0 || fstat(r.file, &status) < 0) fail(arguments[1]);
    r.file_size = status.st_size;
    if (setjmp(r.refused)) {
        printf("{\"class\":\"%s\",\"rule\":\"%s\",\"message\":\"rule %s is broken\"}\n", class_of(r.rule), r.rule, r.rule);
        return 1;
    }
    walk(&r);
    r.out = stdout;
    walk(&r);
    putchar('\n');
    if (fflush(stdout) || ferror(stdout)) fail("stdout");
    return 0;
}
