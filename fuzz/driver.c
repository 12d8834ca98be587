/* Runs reader.c where there is no libFuzzer (gcc): mutates files at random, without knowing what they cover.
 *
 *   driver SECONDS EXECUTIONS FILE ...      ends at whichever comes first; 0 means without that limit */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_SIZE 65536
#define MAX_SEEDS 4096

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed);

static uint64_t state = 0x9E3779B97F4A7C15;

static uint64_t pick(uint64_t below) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * UINT64_C(0x2545F4914F6CDD1D) % below;
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max) {
    switch (size ? pick(5) : 0) {
    case 0: /* a byte more */
        if (size < max) data[size++] = (uint8_t)pick(256);
        break;
    case 1: /* cut */
        size = pick(size);
        break;
    case 2: /* bytes moved */
    {
        size_t length = pick(size) + 1, from = pick(size - length + 1), to = pick(size - length + 1);
        memmove(data + to, data + from, length);
        break;
    }
    case 3: data[pick(size)] ^= (uint8_t)(1 << pick(8)); break;
    default: data[pick(size)] = (uint8_t)pick(256);
    }
    return size;
}

int main(int argc, char **argv) {
    static uint8_t *seeds[MAX_SEEDS];
    static size_t sizes[MAX_SEEDS];
    uint8_t *work = (uint8_t *)malloc(MAX_SIZE);
    size_t count = 0;
    uint64_t runs = 0, limit;
    time_t end;
    if (argc < 4 || !work) return 2;
    end = atol(argv[1]) ? time(NULL) + atol(argv[1]) : 0;
    limit = strtoull(argv[2], NULL, 10);
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 3; i < argc && count < MAX_SEEDS; i++) {
        FILE *in = fopen(argv[i], "rb");
        size_t size = in ? fread(work, 1, MAX_SIZE, in) : 0;
        if (!in || !feof(in)) return 2;
        fclose(in);
        if (!(seeds[count] = (uint8_t *)malloc(size + !size))) return 2;
        memcpy(seeds[count], work, size);
        sizes[count++] = size;
    }
    while ((!limit || runs < limit) && (!end || runs % 1024 || time(NULL) < end)) {
        size_t chosen = pick(count), size = sizes[chosen];
        uint8_t *exact;
        memcpy(work, seeds[chosen], size);
        for (uint64_t times = 1 + pick(4); times; times--)
            size = LLVMFuzzerCustomMutator(work, size, MAX_SIZE, (unsigned)pick(UINT32_MAX));
        if (!(exact = (uint8_t *)malloc(size + !size))) return 2; /* of its size, so that a step beyond it is seen */
        memcpy(exact, work, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        runs++;
    }
    return 0;
}
