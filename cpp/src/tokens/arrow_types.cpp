#include "tokens/arrow_types.hpp"

#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace windeck {
namespace {

std::optional<DType> primitive_type(std::string_view format) {
    for (std::size_t i = 0; i < dtype_count; ++i) {
        const char letter = dtypes[i].arrow_format;
        if (letter != 0 && format == std::string_view(&letter, 1)) return static_cast<DType>(i);
    }
    return std::nullopt;
}

/// The name of a type, for messages. Formats with parameters are matched by their prefix.
std::string type_text(const ArrowSchema& schema) {
    constexpr std::pair<std::string_view, std::string_view> names[] = {{"n", "null"},
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
    if (const auto dtype = primitive_type(format)) return name(*dtype);
    for (const auto& [begin, words] : names) {
        if (!format.starts_with(begin)) continue;
        const bool list = words.ends_with("list") && schema.n_children == 1;
        return std::string(words) + (list ? " of " + type_text(*schema.children[0]) : "");
    }
    return "of the Arrow format '" + std::string(format) + "'";
}

/// The number after "+w:".
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
    const auto dtype = primitive_type(tokens->format);
    if (!dtype || !is_integer(*dtype) || tokens->dictionary != nullptr) {
        throw WrongType(column.text + " is " + type_text(*found) +
                        ", expected integers or lists of integers");
    }
    column.dtype = *dtype;
    return column;
}

}  // namespace windeck
