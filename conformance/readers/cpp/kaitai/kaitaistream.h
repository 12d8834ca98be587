/// What C++ code made by the Kaitai compiler 0.11 needs of its runtime, for reading files of any size.
///
/// Kaitai's own runtime is in no package registry, so this one was written against the generated code. It covers the
/// features that `gpack.ksy` uses (little-endian numbers, bytes, bits, UTF-8 and ASCII), not all of Kaitai's.
#ifndef KAITAI_STREAM_H
#define KAITAI_STREAM_H

/// Version of the interface that the generated code asks for: 0.11.
#define KAITAI_STRUCT_VERSION 11000L

#include <cstdint>
#include <istream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace kaitai {

/// More bytes are wanted than the stream has.
class end_of_stream_error : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A stream over a seekable `std::istream`, which is not owned, or over bytes in memory.
class kstream {
public:
    explicit kstream(std::istream* io) : m_io(io), m_size(measure(io)) {}

    explicit kstream(const std::string& data) : m_memory(data), m_io(&m_memory), m_size(data.size()) {}

    kstream(const kstream&) = delete;
    kstream& operator=(const kstream&) = delete;

    uint64_t size() const { return m_size; }

    std::streampos pos() { return std::streampos(m_position); }

    bool is_eof() const { return m_bits_left == 0 && m_position >= m_size; }

    void seek(uint64_t position) {
        m_bits_left = 0;
        m_position = position;
    }

    uint8_t read_u1() { return number<uint8_t>(); }
    uint16_t read_u2le() { return number<uint16_t>(); }
    uint32_t read_u4le() { return number<uint32_t>(); }
    uint64_t read_u8le() { return number<uint64_t>(); }
    int8_t read_s1() { return static_cast<int8_t>(number<uint8_t>()); }
    int16_t read_s2le() { return static_cast<int16_t>(number<uint16_t>()); }
    int32_t read_s4le() { return static_cast<int32_t>(number<uint32_t>()); }
    int64_t read_s8le() { return static_cast<int64_t>(number<uint64_t>()); }

    /// The next bytes; nothing is reserved before the stream is known to have as many.
    std::string read_bytes(uint64_t count) {
        expect(count);
        std::string made(count, '\0');
        fill(&made[0], count);
        return made;
    }

    /// The next bits, from the lowest of each byte on.
    uint64_t read_bits_int_le(int count) {
        uint64_t bits = m_bits_left ? m_bits : 0;
        int left = m_bits_left;
        for (; left < count; left += 8) {
            bits |= static_cast<uint64_t>(read_u1()) << left;
        }
        m_bits = bits >> count;
        m_bits_left = left - count;
        return bits & ((uint64_t{1} << count) - 1);
    }

    void align_to_byte() { m_bits_left = 0; }

    /// The bytes before the first terminator, or all.
    static std::string bytes_terminate(const std::string& bytes, char terminator, bool include) {
        std::string::size_type end = bytes.find(terminator);
        return end == std::string::npos ? bytes : bytes.substr(0, end + (include ? 1 : 0));
    }

    /// Text stays in its bytes: the grammar's encodings are UTF-8 and a part of it.
    static std::string bytes_to_str(const std::string& bytes, const char*) { return bytes; }

    /// The remainder, never negative.
    template <typename A, typename B>
    static A mod(A dividend, B divisor) {
        return dividend % static_cast<A>(divisor);
    }

private:
    static uint64_t measure(std::istream* io) {
        io->seekg(0, std::ios::end);
        std::streamoff end = io->tellg();
        if (end < 0) {
            throw std::ios_base::failure("the stream cannot seek");
        }
        return static_cast<uint64_t>(end);
    }

    void expect(uint64_t count) const {
        if (m_position > m_size || count > m_size - m_position) {
            throw end_of_stream_error("end of stream: " + std::to_string(count) + " bytes wanted at " +
                                      std::to_string(m_position) + " of " + std::to_string(m_size));
        }
    }

    void fill(char* out, uint64_t count) {
        m_bits_left = 0;
        m_io->clear();
        m_io->seekg(static_cast<std::streamoff>(m_position));
        m_io->read(out, static_cast<std::streamsize>(count));
        if (!*m_io) {
            throw std::ios_base::failure("the system could not read");
        }
        m_position += count;
    }

    template <typename T>
    T number() {
        unsigned char bytes[sizeof(T)];
        expect(sizeof(T));
        fill(reinterpret_cast<char*>(bytes), sizeof(T));
        T made = 0;
        for (int i = sizeof(T) - 1; i >= 0; i--) {
            made = static_cast<T>(made << 8 | bytes[i]);
        }
        return made;
    }

    std::istringstream m_memory;
    std::istream* m_io;
    uint64_t m_size;
    uint64_t m_position = 0;
    uint64_t m_bits = 0;
    int m_bits_left = 0;
};

}  // namespace kaitai

#endif
