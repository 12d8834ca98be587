/// JSON as the reader protocol needs it: a writer of nested values, and a reader of flat objects.
#ifndef GPACK_JSON_H
#define GPACK_JSON_H

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace json {

/// ASCII text in quotation marks; other bytes, which only a broken file has, show as replacement characters.
inline std::string quoted(const std::string& text) {
    static const char digits[] = "0123456789abcdef";
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += static_cast<char>(c);
        } else if (c < 0x20 || c == 0x7f) {
            out += "\\u00";
            out += digits[c >> 4];
            out += digits[c & 15];
        } else if (c > 0x7f) {
            out += "\\ufffd";
        } else {
            out += static_cast<char>(c);
        }
    }
    return out + '"';
}

/// Writes one value into a string.
class writer {
public:
    const std::string& str() const { return m_out; }

    void open(char bracket) {
        comma();
        m_out += bracket;
        m_first = true;
    }

    void close(char bracket) {
        m_out += bracket;
        m_first = false;
    }

    void key(const char* name) {
        comma();
        m_out += quoted(name) + ":";
        m_first = true;
    }

    template <typename T>
    void number(const char* name, T value) {
        item(name, std::to_string(value));
    }

    template <typename T>
    void decimal(const char* name, T value) {
        item(name, '"' + std::to_string(value) + '"');
    }

    void decimals(const char* name, const std::vector<uint64_t>& values) {
        std::string shown;
        for (uint64_t value : values) {
            shown += (shown.empty() ? "\"" : ",\"") + std::to_string(value) + '"';
        }
        item(name, '[' + shown + ']');
    }

    void text(const char* name, const std::string& value) { item(name, quoted(value)); }

    void hex(const char* name, const std::string& bytes) { item(name, '"' + hexadecimal(bytes) + '"'); }

    void heap(const char* name, const std::string& bytes) { item(name, "{\"hex\":\"" + hexadecimal(bytes) + "\"}"); }

private:
    void comma() {
        if (!m_first) {
            m_out += ',';
        }
    }

    void item(const char* name, const std::string& shown) {
        key(name);
        m_out += shown;
        m_first = false;
    }

    static std::string hexadecimal(const std::string& bytes) {
        static const char digits[] = "0123456789abcdef";
        std::string out;
        out.reserve(2 * bytes.size());
        for (unsigned char c : bytes) {
            out += digits[c >> 4];
            out += digits[c & 15];
        }
        return out;
    }

    std::string m_out;
    bool m_first = true;
};

/// Reads an object whose values are texts, numbers or words; numbers and words come back as they stand.
class flat_object {
public:
    static std::map<std::string, std::string> parse(const std::string& line) { return flat_object(line).object(); }

private:
    explicit flat_object(const std::string& line) : m_line(line) {}

    std::map<std::string, std::string> object() {
        std::map<std::string, std::string> found;
        take('{');
        if (next() == '}') {
            return found;
        }
        do {
            std::string name = text();
            take(':');
            found[name] = next() == '"' ? text() : word();
        } while (next() == ',' && ++m_at);
        take('}');
        return found;
    }

    char next() {
        m_at = m_line.find_first_not_of(" \t\r\n", m_at);
        if (m_at == std::string::npos) {
            throw std::runtime_error("a question ends early: " + m_line);
        }
        return m_line[m_at];
    }

    void take(char wanted) {
        if (next() != wanted) {
            throw std::runtime_error(std::string("no '") + wanted + "' in " + m_line);
        }
        m_at++;
    }

    std::string word() {
        std::string::size_type start = m_at;
        m_at = m_line.find_first_of(",}", m_at);
        if (m_at == std::string::npos) {
            throw std::runtime_error("a question ends early: " + m_line);
        }
        return m_line.substr(start, m_at - start);
    }

    std::string text() {
        take('"');
        std::string out;
        while (m_at < m_line.size() && m_line[m_at] != '"') {
            if (m_line[m_at] != '\\') {
                out += m_line[m_at++];
                continue;
            }
            if (m_at + 1 >= m_line.size()) {
                break;
            }
            char c = m_line[m_at + 1];
            m_at += 2;
            if (c == 'u') {
                append(out, unit());
            } else {
                std::string::size_type named = std::string("bfnrt").find(c);
                out += named == std::string::npos ? c : "\b\f\n\r\t"[named];
            }
        }
        take('"');
        return out;
    }

    /// The code point of `\uXXXX`, both halves of a pair together.
    uint32_t unit() {
        uint32_t code = half();
        if (code >= 0xD800 && code < 0xDC00 && m_line.compare(m_at, 2, "\\u") == 0) {
            m_at += 2;
            code = 0x10000 + ((code - 0xD800) << 10) + (half() - 0xDC00);
        }
        return code;
    }

    uint32_t half() {
        uint32_t code = static_cast<uint32_t>(std::stoul(m_line.substr(m_at, 4), nullptr, 16));
        m_at += 4;
        return code;
    }

    static void append(std::string& out, uint32_t code) {
        if (code < 0x80) {
            out += static_cast<char>(code);
            return;
        }
        int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        out += static_cast<char>((0xFF00 >> (more + 1) & 0xFF) | code >> (6 * more));
        while (more--) {
            out += static_cast<char>(0x80 | (code >> (6 * more) & 0x3F));
        }
    }

    const std::string& m_line;
    std::string::size_type m_at = 0;
};

}  // namespace json

#endif
