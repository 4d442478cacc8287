#include "tokens/arrow_types.hpp"

#include <array>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace windeck {
namespace {

std::optional<DType> integer_type(std::string_view format) {
    constexpr std::string_view formats = "csilCSIL";
    constexpr std::array types = {DType::int8,  DType::int16,  DType::int32,  DType::int64,
                                  DType::uint8, DType::uint16, DType::uint32, DType::uint64};
    const auto place = format.size() == 1 ? formats.find(format[0]) : std::string_view::npos;
    return place == std::string_view::npos ? std::nullopt : std::optional(types[place]);
}

/// A type as people call it, for messages. Formats with parameters are told by how they begin.
std::string type_text(const ArrowSchema& schema) {
    constexpr std::pair<std::string_view, std::string_view> names[] = {{"n", "null"},
                                                                       {"b", "bool"},
                                                                       {"e", "float16"},
                                                                       {"f", "float32"},
                                                                       {"g", "float64"},
                                                                       {"z", "binary"},
                                                                       {"Z", "large_binary"},
                                                                       {"vz", "binary_view"},
                                                                       {"u", "string"},
                                                                       {"U", "large_string"},
                                                                       {"vu", "string_view"},
                                                                       {"d", "decimal"},
                                                                       {"w", "fixed_size_binary"},
                                                                       {"td", "date"},
                                                                       {"tt", "time"},
                                                                       {"ts", "timestamp"},
                                                                       {"tD", "duration"},
                                                                       {"ti", "interval"},
                                                                       {"+vl", "list_view"},
                                                                       {"+vL", "large_list_view"},
                                                                       {"+s", "struct"},
                                                                       {"+m", "map"},
                                                                       {"+u", "union"},
                                                                       {"+r", "run_end_encoded"},
                                                                       {"+l", "list"},
                                                                       {"+L", "large_list"},
                                                                       {"+w", "fixed_size_list"}};
    const std::string_view format = schema.format;
    if (schema.dictionary != nullptr) return "dictionary of " + type_text(*schema.dictionary);
    if (const auto integers = integer_type(format)) return std::string(name(*integers));
    for (const auto& [begin, words] : names) {
        if (!format.starts_with(begin)) continue;
        const bool list = words.ends_with("list") && schema.n_children == 1;
        return std::string(words) + (list ? " of " + type_text(*schema.children[0]) : "");
    }
    return "of the Arrow format '" + std::string(format) + "'";
}

/// The numbers behind "+w:".
std::int64_t width_of(std::string_view format, const std::string& text) {
    std::int64_t width = 0;
    for (const char digit : format.substr(3)) {
        if (digit < '0' || digit > '9' || width > INT32_MAX) {
            throw WrongType(text + " has the Arrow format '" + std::string(format) +
                            "', expected integers or lists of integers");
        }
        width = 10 * width + (digit - '0');
    }
    return width;
}

}  // namespace

TokenColumn column_of(const ArrowSchema& schema, const std::string& name) {
    TokenColumn column;
    const ArrowSchema* found = &schema;
    if (std::string_view(schema.format) == "+s") {
        if (schema.n_children != 1) {
            throw std::invalid_argument("the stream of '" + name + "' has " +
                                        std::to_string(schema.n_children) +
                                        " columns, expected one");
        }
        found = schema.children[0];
        column.in_struct = true;
    }
    const bool named = found->name != nullptr && *found->name != '\0';
    column.text =
        (named ? "column '" + std::string(found->name) + "'" : "the column") + " of '" + name + "'";
    const ArrowSchema* tokens = found;
    const std::string_view format = found->format;
    column.lists = format == "+l" || format == "+L" || format.starts_with("+w:");
    if (column.lists && found->n_children == 1 && found->dictionary == nullptr) {
        if (format == "+l") column.offset_bytes = 4;
        if (format == "+L") column.offset_bytes = 8;
        if (column.offset_bytes == 0) column.width = width_of(format, column.text);
        tokens = found->children[0];
    }
    const auto dtype = integer_type(tokens->format);
    if (!dtype || tokens->dictionary != nullptr) {
        throw WrongType(column.text + " is " + type_text(*found) +
                        ", expected integers or lists of integers");
    }
    column.dtype = *dtype;
    return column;
}

}  // namespace windeck
