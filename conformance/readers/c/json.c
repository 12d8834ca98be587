#include <inttypes.h>

#include "reader.h"

static void comma(reader *r) {
    if (r->out && !r->first) fputc(',', r->out);
}

void json_key(reader *r, const char *name) {
    comma(r);
    r->first = 1;
    if (r->out) fprintf(r->out, "\"%s\":", name);
}

void json_open(reader *r, char bracket) {
    comma(r);
    r->first = 1;
    if (r->out) fputc(bracket, r->out);
}

void json_close(reader *r, char bracket) {
    r->first = 0;
    if (r->out) fputc(bracket, r->out);
}

void json_number(reader *r, const char *name, int64_t value) {
    json_key(r, name);
    r->first = 0;
    if (r->out) fprintf(r->out, "%" PRId64, value);
}

void json_float(reader *r, const char *name, double value) {
    json_key(r, name);
    r->first = 0;
    if (r->out) fprintf(r->out, "%.17g", value);
}

void json_decimal(reader *r, const char *name, int64_t value) {
    json_key(r, name);
    r->first = 0;
    if (r->out) fprintf(r->out, "\"%" PRId64 "\"", value);
}

void json_decimals(reader *r, const char *name, const uint64_t *values, int count) {
    json_key(r, name);
    json_open(r, '[');
    for (int i = 0; r->out && i < count; i++) {
        fprintf(r->out, "%s\"%" PRIu64 "\"", i ? "," : "", values[i]);
    }
    json_close(r, ']');
}

static void hexadecimal(FILE *out, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) fprintf(out, "%02x", bytes[i]);
}

void json_hex(reader *r, const char *name, const uint8_t *bytes, int count) {
    json_key(r, name);
    r->first = 0;
    if (!r->out) return;
    fputc('"', r->out);
    hexadecimal(r->out, bytes, (size_t)count);
    fputc('"', r->out);
}

void json_text(reader *r, const char *name, const char *text, int count) {
    json_key(r, name);
    r->first = 0;
    if (!r->out) return;
    fputc('"', r->out);
    for (int i = 0; i < count && text[i]; i++) {
        if (text[i] == '"' || text[i] == '\\') fputc('\\', r->out);
        fputc(text[i], r->out); /* printable ASCII: the rule section.name_encoding */
    }
    fputc('"', r->out);
}

void json_heap(reader *r, const char *name, uint64_t offset, uint64_t length) {
    uint8_t piece[4096];
    if (offset > r->heap_size || length > r->heap_size - offset) hold(r, "index.heap_ref");
    json_key(r, name);
    r->first = 0;
    if (!r->out) return;
    fputs("{\"hex\":\"", r->out);
    for (uint64_t done = 0; done < length;) {
        size_t count = length - done < sizeof piece ? (size_t)(length - done) : sizeof piece;
        read_at(r, r->heap + offset + done, piece, count);
        hexadecimal(r->out, piece, count);
        done += count;
    }
    fputs("\"}", r->out);
}
