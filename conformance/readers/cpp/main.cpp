/// A reader of GPACK over the C++ code that the Kaitai compiler makes of schema/gpack.ksy.
///
/// It speaks the reader protocol of spec/conformance.md: one JSON object a line. It knows structure, no digests; arguments are
/// not looked at.

#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include "dump.h"
#include "gpack.h"
#include "json.h"
#include "kaitai/exceptions.h"

namespace {

/// The rest of an answer. A file that cannot be read at all is a fault, not a rejection, and is thrown.
std::string verdict(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        throw std::runtime_error("cannot open " + path);
    }
    std::string refusal, rule;
    try {
        kaitai::kstream io(&file);
        gpack_t root(&io);
        json::writer out;
        dump::file(out, root);
        return "\"verdict\":\"accept\",\"dump\":" + out.str();
    } catch (const kaitai::validation_failed_error& error) {
        refusal = error.what();
        rule = dump::newer(error.src_path());
    } catch (const kaitai::end_of_stream_error& error) {
        refusal = error.what();
    }
    std::string shown = "\"verdict\":\"reject\",\"message\":" + json::quoted(refusal);
    if (rule.empty()) {
        return shown + ",\"class\":\"structure\"";
    }
    return shown + ",\"class\":\"unsupported\",\"rule\":" + json::quoted(rule);
}

int serve() {
    std::cout << R"({"type":"start","protocol":1,"name":"gpack-kaitai-cpp","language":"cpp","version":"1",)"
              << R"("level":"structure"})" << std::endl;
    std::string line;
    while (std::getline(std::cin, line)) {
        auto asked = json::flat_object::parse(line);
        if (asked["type"] == "stop") {
            break;
        }
        std::string answer = verdict(asked["path"]);  // whole, before anything is written
        std::cout << "{\"type\":\"result\",\"seq\":" << asked["seq"] << ',' << answer << '}' << std::endl;
    }
    return 0;
}

}  // namespace

int main() {
    try {
        return serve();
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 2;
    }
}
