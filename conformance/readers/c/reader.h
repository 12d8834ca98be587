/** A file that is read piece by piece, and the JSON that is written of it. */
#ifndef READER_H
#define READER_H

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>

typedef struct reader {
    int file;
    int64_t file_size;
    uint64_t section;     /**< Start of the section at hand. */
    int64_t section_size; /**< Its length. */
    uint64_t heap;        /**< Start of its heap. */
    uint64_t heap_size;   /**< Length of its heap. */
    FILE *out;            /**< Where the dump goes; NULL: the file is only checked. */
    int first;            /**< No comma is due. */
    const char *rule;     /**< The rule that the file breaks. */
    jmp_buf refused;      /**< Where a rejection goes to. */
} reader;

/** Reads from a place of the file; a place beyond its end is a rejection. */
void read_at(reader *r, uint64_t offset, void *into, size_t count);

/** Goes on where `rule` is NULL, else rejects the file. */
void hold(reader *r, const char *rule);

void json_key(reader *r, const char *name);
void json_open(reader *r, char bracket);
void json_close(reader *r, char bracket);
void json_number(reader *r, const char *name, int64_t value);
void json_float(reader *r, const char *name, double value);
void json_decimal(reader *r, const char *name, int64_t value);
void json_decimals(reader *r, const char *name, const uint64_t *values, int count);
void json_hex(reader *r, const char *name, const uint8_t *bytes, int count);
void json_text(reader *r, const char *name, const char *text, int count);

/** The bytes that a reference points at, in pieces. */
void json_heap(reader *r, const char *name, uint64_t offset, uint64_t length);

#endif
