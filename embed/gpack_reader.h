/*
 * A reader of GPACK to copy into a program: gpack.h (generated from the schema), this header and gpack_reader.c.
 *
 * It works on the bytes of a whole file, mapped or read by the caller, and allocates, maps and reads nothing itself. What it
 * hands out are copies of records and ranges of those bytes. Every range is checked, whatever the file says. C11 and C++17,
 * little-endian hosts. SPDX-License-Identifier: Apache-2.0
 *
 * Functions return NULL, or the id of the rule that the file breaks (spec/GPACK.md has them all), or "not found".
 */
#ifndef GPACK_READER_H
#define GPACK_READER_H

#include "gpack.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What `gpack_find_...` return where there is no such thing; compare the pointers. */
extern const char *const gpack_not_found;

/** A range of the file's bytes. */
typedef struct gpack_bytes {
    const uint8_t *data;
    uint64_t size;
} gpack_bytes;

/** An open file: the caller's bytes, and the two fixed records. */
typedef struct gpack_file {
    gpack_bytes bytes;
    GPackHeaderV1 header;
    GPackFooterV1 footer;
} gpack_file;

/** A table of sorted rows with its heap. */
typedef struct gpack_table {
    const uint8_t *rows;
    uint32_t count;
    uint32_t row_size;
    gpack_bytes heap;
} gpack_table;

/** A tensor: its row, its name, and its bytes. */
typedef struct gpack_tensor {
    TensorIndexRowV1 row;
    gpack_bytes name;
    /** The tensor's bytes; data is NULL where they are in pieces (`gpack_expert`) or in another file (EXTERNAL). */
    gpack_bytes data;
} gpack_tensor;

/** A metadata entry: its row, its key, and the bytes of its value. */
typedef struct gpack_entry {
    MetadataKvRowV1 row;
    gpack_bytes key;
    gpack_bytes value;
} gpack_entry;

/**
 * Opens a file: magics, versions, exact size, bounds, alignment and pairs of all sections, flags, overlap, and the
 * manifest's SHA-256. `data` must outlive `file`, and be 8-byte aligned only if the caller casts what it is handed.
 */
const char *gpack_open(gpack_file *file, const void *data, uint64_t size);

/** The directory entry of a kind, and its payload. Either may be NULL. */
const char *gpack_find_section(const gpack_file *file, uint32_t kind, GPackSectionEntryV1 *entry, gpack_bytes *payload);

/** TensorIndexBin: every tensor, sorted by the bytes of its name. */
const char *gpack_tensors(const gpack_file *file, gpack_table *tensors);

/** The tensor in a row. */
const char *gpack_tensor_at(const gpack_file *file, const gpack_table *tensors, uint32_t row, gpack_tensor *tensor);

/** The tensor of a name, by binary search. */
const char *gpack_find_tensor(
    const gpack_file *file, const gpack_table *tensors, const char *name, uint64_t size, gpack_tensor *tensor);

/** The bytes of one expert in a tensor of routed experts that lies in the pack. */
const char *gpack_expert(const gpack_file *file, const gpack_tensor *tensor, uint64_t expert, gpack_bytes *slice);

/** MetadataKvBin: every key, sorted by its bytes. */
const char *gpack_metadata(const gpack_file *file, gpack_table *metadata);

/** The metadata entry in a row. */
const char *gpack_entry_at(const gpack_table *metadata, uint32_t row, gpack_entry *entry);

/** The metadata entry of a key, by binary search. */
const char *gpack_find_key(const gpack_table *metadata, const char *key, uint64_t size, gpack_entry *entry);

/** SHA-256 of some bytes, to compare with a section's; 32 bytes are written. */
void gpack_sha256(const uint8_t *data, uint64_t size, uint8_t *digest);

#ifdef __cplusplus
}
#endif

#endif
