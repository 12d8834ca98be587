/* The embeddable reader of GPACK; gpack_reader.h says what it does. SPDX-License-Identifier: Apache-2.0 */
#include "gpack_reader.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__)
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "records are copied as they lie in the file: little-endian"
#endif
#endif

const char *const gpack_not_found = "not found";

/* ---- ranges ---- */

static int within(uint64_t offset, uint64_t length, uint64_t size) {
    return offset <= size && length <= size - offset; /* in this order: a sum could wrap around */
}

static uint64_t align_up(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment; /* of values below 2^54 */
}

static gpack_bytes part(gpack_bytes of, uint64_t offset, uint64_t length) {
    gpack_bytes made;
    made.data = of.data + offset;
    made.size = length;
    return made;
}

static int compare(gpack_bytes one, const char *other, uint64_t size) {
    uint64_t shorter = one.size < size ? one.size : size;
    int order = shorter ? memcmp(one.data, other, (size_t)shorter) : 0;
    return order ? order : (one.size > size) - (one.size < size);
}

/* ---- SHA-256 (FIPS 180-4) ---- */

static const uint32_t ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t value, unsigned bits) {
    return value >> bits | value << (32 - bits);
}

static void sha256_block(uint32_t *state, const uint8_t *block) {
    uint32_t w[64], s[8];
    for (unsigned i = 0; i < 16; i++) {
        const uint8_t *at = block + 4 * i;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + choice + ROUNDS[i] + w[i];
        uint32_t two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + most;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (unsigned i = 0; i < 8; i++) state[i] += s[i];
}

void gpack_sha256(const uint8_t *data, uint64_t size, uint8_t *digest) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128] = {0};
    uint64_t whole = size / 64 * 64, rest = size - whole, end = rest < 56 ? 64 : 128;
    for (uint64_t at = 0; at < whole; at += 64) sha256_block(state, data + at);
    if (rest) memcpy(last, data + whole, (size_t)rest);
    last[rest] = 0x80;
    for (unsigned i = 0; i < 8; i++) last[end - 1 - i] = (uint8_t)(size * 8 >> 8 * i);
    for (uint64_t at = 0; at < end; at += 64) sha256_block(state, last + at);
    for (unsigned i = 0; i < 32; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - i % 4 * 8));
}

/* ---- opening ---- */

static GPackSectionEntryV1 entry_at(const gpack_file *file, uint32_t index) {
    GPackSectionEntryV1 entry;
    memcpy(&entry, file->bytes.data + file->header.section_table_offset + (uint64_t)index * sizeof entry, sizeof entry);
    return entry;
}

static int name_is_text(const char *name, unsigned size) {
    unsigned length = 0;
    while (length < size && name[length] > 0x1f && name[length] < 0x7f) length++;
    if (length == 0 || length == size) return 0;
    for (unsigned i = length; i < size; i++) {
        if (name[i]) return 0;
    }
    return 1;
}

static const char *check_header(const GPackHeaderV1 *h, uint64_t size) {
    uint64_t table = (uint64_t)h->section_count * sizeof(GPackSectionEntryV1);
    if (h->magic != GPACK_HEADER_V1_MAGIC) return "header.magic";
    if (h->min_reader_version > GPACK_READER_VERSION) return "header.min_reader_version";
    if (h->min_reader_version < 1 || h->min_reader_version > h->format_version) return "header.format_version";
    if (!(h->flags & GUILD_GPACK_FLAG_LITTLE_ENDIAN)) return "header.endian";
    if (h->total_file_size != size) return "header.total_file_size";
    if (h->section_count < 3 || h->section_count > GPACK_MAX_SECTIONS) return "header.section_count";
    if (h->section_table_offset % GPACK_CACHE_LINE || h->section_table_offset < sizeof *h) {
        return "header.section_table_offset";
    }
    if (!within(h->section_table_offset, table, size)) return "header.section_table_bounds";
    if (!within(h->manifest_offset, h->manifest_size, size)) return "header.manifest_bounds";
    if (size != align_up(h->section_table_offset + table, GPACK_CACHE_LINE) + sizeof(GPackFooterV1)) {
        return "header.layout";
    }
    return NULL;
}

static const char *check_entry(const GPackSectionEntryV1 *entry, uint64_t size) {
    const char *name = gpack_section_kind_name(entry->kind);
    if (!within(entry->offset, entry->size, size)) return "section.bounds";
    if (entry->alignment != GPACK_CACHE_LINE && entry->alignment != GPACK_PAGE) return "section.alignment";
    if (entry->offset % entry->alignment) return "section.offset_alignment";
    if (entry->offset < sizeof(GPackHeaderV1)) return "section.after_header";
    if (!name_is_text(entry->name, sizeof entry->name)) return "section.name_encoding";
    if (name && strcmp(name, entry->name)) return "section.name"; /* it is terminated, as was just seen */
    if (name && entry->alignment != gpack_section_kind_alignment(entry->kind)) return "section.kind_alignment";
    return NULL;
}

/** An entry against the others: for the few sections of a file this needs no memory and no sorting. */
static const char *check_against(const gpack_file *file, uint32_t index, const GPackSectionEntryV1 *entry) {
    if (entry->offset + entry->size > file->header.section_table_offset) return "section.overlap";
    for (uint32_t i = 0; i < index; i++) {
        GPackSectionEntryV1 other = entry_at(file, i);
        if (other.kind == entry->kind) return "section.duplicate";
        if (entry->size && other.size && entry->offset < other.offset + other.size &&
            other.offset < entry->offset + entry->size) {
            return "section.overlap";
        }
    }
    return NULL;
}

static const char *check_directory(const gpack_file *file) {
    uint64_t present = 0, payload = 0; /* bits of the kinds that this version knows: fewer than 64 */
    uint32_t known = GUILD_GPACK_FLAG_LITTLE_ENDIAN | GUILD_GPACK_FLAG_EXTERNAL_EXPERTS;
    uint32_t expected = GUILD_GPACK_FLAG_LITTLE_ENDIAN;
    for (uint32_t i = 0; i < file->header.section_count; i++) {
        GPackSectionEntryV1 entry = entry_at(file, i);
        const char *broken = check_entry(&entry, file->bytes.size);
        if (!broken) broken = check_against(file, i, &entry);
        if (broken) return broken;
        if (entry.kind < GPACK_SECTION_KINDS) present |= UINT64_C(1) << entry.kind;
        payload += entry.size;
        if (entry.kind == GPACK_SECTION_KIND_MANIFEST_JSON &&
            (entry.offset != file->header.manifest_offset || entry.size != file->header.manifest_size)) {
            return "header.manifest";
        }
    }
    for (uint32_t kind = 0; kind < GPACK_SECTION_KINDS; kind++) {
        int there = (int)(present >> kind & 1);
        if (!there && gpack_section_kind_mandatory(kind)) return "section.mandatory";
        if (there && (gpack_section_kind_needs(kind) & ~present)) return "section.pair";
        known |= gpack_section_kind_flag(kind);
        if (there) expected |= gpack_section_kind_flag(kind);
    }
    if ((present >> GPACK_SECTION_KIND_EXPERT_LAYOUT_BIN & 1) && !(present >> GPACK_SECTION_KIND_EXPERT_BLOBS & 1)) {
        expected |= GUILD_GPACK_FLAG_EXTERNAL_EXPERTS;
    }
    if ((file->header.flags & known) != expected) return "header.flags_match";
    if (payload != file->footer.total_payload_bytes) return "footer.total_payload_bytes";
    return NULL;
}

const char *gpack_open(gpack_file *file, const void *data, uint64_t size) {
    const char *broken;
    uint8_t digest[32];
    memset(file, 0, sizeof *file);
    file->bytes.data = (const uint8_t *)data;
    file->bytes.size = size;
    if (size < sizeof file->header + sizeof file->footer) {
        uint32_t magic = GPACK_HEADER_V1_MAGIC;
        return size >= sizeof magic && memcmp(data, &magic, sizeof magic) ? "header.magic" : "header.complete";
    }
    memcpy(&file->header, data, sizeof file->header);
    broken = check_header(&file->header, size);
    if (broken) return broken;
    memcpy(&file->footer, file->bytes.data + size - sizeof file->footer, sizeof file->footer);
    if (file->footer.footer_magic != GPACK_FOOTER_V1_MAGIC) return "footer.magic";
    if (file->footer.manifest_offset != file->header.manifest_offset) return "footer.manifest_offset";
    if (file->footer.section_table_offset != file->header.section_table_offset) return "footer.section_table_offset";
    broken = check_directory(file);
    if (broken) return broken;
    gpack_sha256(file->bytes.data + file->header.manifest_offset, file->header.manifest_size, digest);
    return memcmp(digest, file->footer.manifest_sha256, sizeof digest) ? "manifest.sha256" : NULL;
}

const char *gpack_find_section(const gpack_file *file, uint32_t kind, GPackSectionEntryV1 *entry, gpack_bytes *payload) {
    for (uint32_t i = 0; i < file->header.section_count; i++) {
        GPackSectionEntryV1 found = entry_at(file, i);
        if (found.kind != kind) continue;
        if (entry) *entry = found;
        if (payload) *payload = part(file->bytes, found.offset, found.size);
        return NULL;
    }
    return gpack_not_found;
}

/* ---- tables ---- */

/** Opens a table whose header begins as all do; `rows` of ExpertLayoutBin are followed by another table. */
static const char *open_table(const gpack_file *file, uint32_t kind, uint32_t magic, uint64_t least, gpack_table *table) {
    gpack_bytes section;
    TensorIndexHeaderV1 header;
    const char *broken = gpack_find_section(file, kind, NULL, &section);
    memset(table, 0, sizeof *table);
    if (broken) return broken;
    if (section.size < sizeof header) return "index.header";
    memcpy(&header, section.data, sizeof header);
    if (header.magic != magic) return "index.magic";
    if (header.version != 1) return "index.version";
    if (header.row_size < least || header.row_size % 8) return "index.row_size";
    if (header.num_rows > GPACK_MAX_ROWS) return "index.num_rows";
    if (header.ofs_rows != sizeof header) return "index.layout";
    if (!within(header.ofs_rows, (uint64_t)header.num_rows * header.row_size, section.size)) return "index.layout";
    if (!within(header.ofs_heap, header.len_heap, section.size)) return "index.heap_bounds";
    table->rows = section.data + header.ofs_rows;
    table->count = header.num_rows;
    table->row_size = header.row_size;
    table->heap = part(section, header.ofs_heap, header.len_heap);
    return NULL;
}

static const uint8_t *row_at(const gpack_table *table, uint32_t row) {
    return table->rows + (uint64_t)row * table->row_size;
}

static int heap_part(const gpack_table *table, uint32_t offset, uint32_t length, gpack_bytes *found) {
    if (!within(offset, length, table->heap.size)) return 0;
    *found = part(table->heap, offset, length);
    return 1;
}

const char *gpack_tensors(const gpack_file *file, gpack_table *tensors) {
    return open_table(file, GPACK_SECTION_KIND_TENSOR_INDEX_BIN, GPACK_TENSOR_INDEX_HEADER_V1_MAGIC,
        sizeof(TensorIndexRowV1), tensors);
}

const char *gpack_metadata(const gpack_file *file, gpack_table *metadata) {
    return open_table(file, GPACK_SECTION_KIND_METADATA_KV_BIN, GPACK_METADATA_KV_HEADER_V1_MAGIC,
        sizeof(MetadataKvRowV1), metadata);
}

/* ---- tensors ---- */

const char *gpack_tensor_at(const gpack_file *file, const gpack_table *tensors, uint32_t row, gpack_tensor *tensor) {
    gpack_bytes home;
    memset(tensor, 0, sizeof *tensor);
    if (row >= tensors->count) return gpack_not_found;
    memcpy(&tensor->row, row_at(tensors, row), sizeof tensor->row);
    if (!heap_part(tensors, tensor->row.name_offset, tensor->row.name_length, &tensor->name)) return "index.heap_ref";
    if (tensor->row.n_dims > GPACK_MAX_RANK) return "tensor.rank";
    if (tensor->row.flags & GUILD_GPACK_TENSOR_FLAG_EXTERNAL) return NULL;
    if (gpack_find_section(file, tensor->row.home, NULL, &home)) return "tensor.home_present";
    if (!within(tensor->row.offset, tensor->row.byte_size, home.size)) return "tensor.bounds";
    if (tensor->row.role == GPACK_EXPERT_ROLE_NONE) tensor->data = part(home, tensor->row.offset, tensor->row.byte_size);
    return NULL;
}

const char *gpack_find_tensor(
    const gpack_file *file, const gpack_table *tensors, const char *name, uint64_t size, gpack_tensor *tensor) {
    uint32_t low = 0, high = tensors->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        TensorIndexRowV1 row;
        gpack_bytes found;
        int order;
        memcpy(&row, row_at(tensors, middle), sizeof row);
        if (!heap_part(tensors, row.name_offset, row.name_length, &found)) return "index.heap_ref";
        order = compare(found, name, size);
        if (order == 0) return gpack_tensor_at(file, tensors, middle, tensor);
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return gpack_not_found;
}

const char *gpack_expert(const gpack_file *file, const gpack_tensor *tensor, uint64_t expert, gpack_bytes *slice) {
    gpack_table table;
    gpack_bytes home;
    uint64_t stride, length, count = tensor->row.dims[2];
    int draft = tensor->row.home == GPACK_SECTION_KIND_MTP_BLOB;
    const char *broken;
    if (tensor->row.role == GPACK_EXPERT_ROLE_NONE || tensor->row.flags & GUILD_GPACK_TENSOR_FLAG_EXTERNAL ||
        expert >= count) {
        return gpack_not_found;
    }
    broken = draft ? open_table(file, GPACK_SECTION_KIND_MTP_BLOB, GPACK_MTP_HEADER_V1_MAGIC, sizeof(MtpRowV1), &table)
                   : open_table(file, GPACK_SECTION_KIND_EXPERT_LAYOUT_BIN, GPACK_EXPERT_LAYOUT_HEADER_V1_MAGIC,
                         sizeof(ExpertLayoutRowV1), &table);
    if (broken) return broken;
    if (tensor->row.home_row >= table.count) return "tensor.home_row";
    if (draft) {
        MtpRowV1 row;
        memcpy(&row, row_at(&table, tensor->row.home_row), sizeof row);
        stride = row.stride;
    } else {
        ExpertLayoutRowV1 row;
        memcpy(&row, row_at(&table, tensor->row.home_row), sizeof row);
        stride = row.stride;
    }
    if (gpack_find_section(file, tensor->row.home, NULL, &home)) return "tensor.home_present";
    length = tensor->row.byte_size / count;
    if (stride && expert > GPACK_MAX_NUMBER / stride) return "tensor.bounds";
    if (!within(tensor->row.offset, 0, home.size)) return "tensor.bounds";
    if (!within(expert * stride, length, home.size - tensor->row.offset)) return "tensor.bounds";
    *slice = part(home, tensor->row.offset + expert * stride, length);
    return NULL;
}

/* ---- metadata ---- */

const char *gpack_entry_at(const gpack_table *metadata, uint32_t row, gpack_entry *entry) {
    memset(entry, 0, sizeof *entry);
    if (row >= metadata->count) return gpack_not_found;
    memcpy(&entry->row, row_at(metadata, row), sizeof entry->row);
    if (!heap_part(metadata, entry->row.key_offset, entry->row.key_length, &entry->key) ||
        !heap_part(metadata, entry->row.value_offset, entry->row.value_length, &entry->value)) {
        return "index.heap_ref";
    }
    return NULL;
}

const char *gpack_find_key(const gpack_table *metadata, const char *key, uint64_t size, gpack_entry *entry) {
    uint32_t low = 0, high = metadata->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const char *broken = gpack_entry_at(metadata, middle, entry);
        int order;
        if (broken) return broken;
        order = compare(entry->key, key, size);
        if (order == 0) return NULL;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return gpack_not_found;
}
