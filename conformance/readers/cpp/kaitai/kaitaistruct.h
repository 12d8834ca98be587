/// The base of the classes that the Kaitai compiler 0.11 makes.
#ifndef KAITAI_STRUCT_H
#define KAITAI_STRUCT_H

#include <cstdlib>
#include <new>

#include "kaitai/kaitaistream.h"

namespace kaitai {

/// An object with the stream that it was read from; it owns neither its stream nor its parent.
class kstruct {
public:
    explicit kstruct(kstream* io) : m__io(io) {}
    virtual ~kstruct() = default;
    kstruct(const kstruct&) = delete;
    kstruct& operator=(const kstruct&) = delete;

    /// Zeroed memory: the generated classes leave the pointer of a switched type unset, and delete it after an error.
    /// Compile with -fno-lifetime-dse, which keeps the zeros until a constructor overwrites them.
    static void* operator new(std::size_t size) {
        void* made = std::calloc(1, size);
        if (!made) {
            throw std::bad_alloc();
        }
        return made;
    }
    static void operator delete(void* object) { std::free(object); }

protected:
    kstream* m__io;

public:
    kstream* _io() { return m__io; }
};

}  // namespace kaitai

#endif
