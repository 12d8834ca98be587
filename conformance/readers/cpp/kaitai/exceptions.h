/// Errors that the generated classes throw. All of them mean that a file does not follow the grammar.
#ifndef KAITAI_EXCEPTIONS_H
#define KAITAI_EXCEPTIONS_H

#include <stdexcept>
#include <string>

#include "kaitai/kaitaistream.h"

namespace kaitai {

/// A check of the grammar failed at `src_path`.
class validation_failed_error : public std::runtime_error {
public:
    validation_failed_error(const std::string& what, const std::string& src_path)
        : std::runtime_error(src_path + ": " + what), m_src_path(src_path) {}

    /// The place of the check in the grammar.
    const std::string& src_path() const { return m_src_path; }

private:
    std::string m_src_path;
};

/// A value is not the one that the grammar demands.
template <typename T>
class validation_not_equal_error : public validation_failed_error {
public:
    validation_not_equal_error(const T& expected, const T& actual, kstream*, const std::string& src_path)
        : validation_failed_error(std::to_string(actual) + " is not " + std::to_string(expected), src_path) {}
};

/// A value is below the grammar's minimum.
template <typename T>
class validation_less_than_error : public validation_failed_error {
public:
    validation_less_than_error(const T& least, const T& actual, kstream*, const std::string& src_path)
        : validation_failed_error(std::to_string(actual) + " is less than " + std::to_string(least), src_path) {}
};

/// A value is above the grammar's maximum.
template <typename T>
class validation_greater_than_error : public validation_failed_error {
public:
    validation_greater_than_error(const T& most, const T& actual, kstream*, const std::string& src_path)
        : validation_failed_error(std::to_string(actual) + " is more than " + std::to_string(most), src_path) {}
};

/// A value fails an expression of the grammar.
template <typename T>
class validation_expr_error : public validation_failed_error {
public:
    validation_expr_error(const T& actual, kstream*, const std::string& src_path)
        : validation_failed_error(std::to_string(actual) + " is not allowed", src_path) {}
};

}  // namespace kaitai

#endif
