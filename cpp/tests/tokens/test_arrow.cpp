#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "windeck/tokens/arrow.hpp"

using namespace windeck;
using Numbers = std::vector<std::int64_t>;

namespace {

int alive = 0;  // structs handed out and not released yet

template <typename Struct>
void release(Struct* held) {
    check(held->release != nullptr, "released once");
    held->release = nullptr;
    --alive;
}

/// A stream of arrays made by hand: every one is {format, values, offsets}.
struct Made {
    std::string format = "+l";
    std::string inner = "i";
    std::vector<ArrowArray> arrays;
    std::size_t next = 0;
    int fails_with = 0;

    ArrowSchema child_schema{};
    std::array<ArrowSchema*, 1> child_schemas{&child_schema};
    std::deque<ArrowArray> children;
    std::deque<ArrowArray*> child_pointers;
    std::deque<std::array<const void*, 2>> buffers;

    void add(const std::vector<std::int32_t>& values, const std::vector<std::int32_t>& offsets) {
        ArrowArray& child = children.emplace_back();
        child.length = static_cast<std::int64_t>(values.size());
        child.n_buffers = 2;
        child.buffers =
            buffers.emplace_back(std::array<const void*, 2>{nullptr, values.data()}).data();
        ArrowArray list{};
        list.length = static_cast<std::int64_t>(offsets.size()) - 1;
        list.n_buffers = 2;
        list.n_children = 1;
        list.buffers =
            buffers.emplace_back(std::array<const void*, 2>{nullptr, offsets.data()}).data();
        list.children = &child_pointers.emplace_back(&child);
        list.release = release<ArrowArray>;
        arrays.push_back(list);
    }

    static Made& of(ArrowArrayStream* stream) { return *static_cast<Made*>(stream->private_data); }

    static int get_schema(ArrowArrayStream* stream, ArrowSchema* out) {
        Made& made = of(stream);
        *out = {};
        out->format = made.format.c_str();
        out->name = "tokens";
        made.child_schema.format = made.inner.c_str();
        out->n_children = made.format == "i" ? 0 : 1;
        out->children = made.child_schemas.data();
        out->release = release<ArrowSchema>;
        ++alive;
        return 0;
    }

    static int get_next(ArrowArrayStream* stream, ArrowArray* out) {
        Made& made = of(stream);
        *out = {};
        if (made.next < made.arrays.size()) {
            *out = made.arrays[made.next++];
            ++alive;
            return 0;
        }
        return made.fails_with;
    }

    static const char* last_error(ArrowArrayStream*) { return "out of luck"; }

    Owned<ArrowArrayStream> stream() {
        next = 0;
        ++alive;
        return Owned<ArrowArrayStream>(
            {get_schema, get_next, last_error, release<ArrowArrayStream>, this});
    }
};

const std::vector<std::int32_t> values{1, 2, 3, 4, 5};
const std::vector<std::int32_t> offsets{0, 2, 2, 5};

void lists_are_read_and_released() {
    Made made;
    made.add(values, offsets);
    made.add(values, {});
    made.arrays.back().length = 0;
    made.add(values, offsets);
    {
        const TokenShard shard = shard_of_stream(made.stream(), {}, std::nullopt, nullptr, "x");
        check(shard.documents() == 6 && shard.totals().tokens == 10 && !shard.mapped(), "lists");
        check(alive == 3, "arrays are kept as long as the shard");
        std::vector<std::int32_t> out(3);
        shard.copy(5, std::as_writable_bytes(std::span(out)));
        check(out == std::vector<std::int32_t>{3, 4, 5}, "tokens");
    }
    check(alive == 0, "everything is released");
}

void addresses_in_a_file_are_kept_without_arrays() {
    // One memory, as a mapping is, that holds both.
    std::vector<std::int32_t> file{0, 2, 2, 5, 1, 2, 3, 4, 5};
    const auto begin = reinterpret_cast<const std::byte*>(file.data());
    const auto gone = std::make_shared<int>(0);
    Made made;
    made.add(values, offsets);
    made.buffers[0][1] = file.data() + 4;
    made.buffers[1][1] = file.data();
    for (const std::int64_t bytes : {36, 35, 16}) {
        const auto open = [&] {
            return shard_of_stream(made.stream(), {}, MappedFile{begin, bytes, -1}, gone, "x");
        };
        if (bytes == 35) {
            check_throws<std::invalid_argument>(open,
                                                "'tokens' of 'x' has an array that reaches over");
            continue;
        }
        const TokenShard shard = open();
        check(shard.mapped() && gone.use_count() == 2, "the owner is kept");
        check(alive == (bytes == 36 ? 0 : 1), "arrays are kept that lie outside of the file");
        check(shard.view(2).length == 3, "length");
    }
    const std::vector<std::byte> elsewhere(8);
    const TokenShard shard =
        shard_of_stream(made.stream(), {}, MappedFile{elsewhere.data(), 8, -1}, gone, "x");
    check(!shard.mapped() && gone.use_count() == 1 && alive == 1, "nothing lies in the file");
}

template <typename Error>
void refused(Made& made, const char* message) {
    check_throws<Error>([&] { shard_of_stream(made.stream(), {}, std::nullopt, nullptr, "x"); },
                        message);
    check(alive == 0, "everything is released after an error");
}

template <typename Change>
void contradicts(Change change) {
    Made made;
    made.add(values, offsets);
    change(made);
    refused<std::invalid_argument>(made, "has an array that contradicts its type");
}

void refuses() {
    Made made;
    made.add(values, offsets);
    made.fails_with = EINVAL;
    refused<std::invalid_argument>(made, "the stream of 'x' failed: out of luck");
    made.fails_with = ENOMEM;
    refused<std::bad_alloc>(made, "");
    made.fails_with = 0;
    made.inner = "g";
    refused<WrongType>(made, "column 'tokens' of 'x' is list of float64, expected integers or");
    made.format = "i";
    made.arrays[0].n_buffers = 1;
    refused<std::invalid_argument>(made, "has an array that contradicts its type");
    made.format = "odd";
    refused<WrongType>(made, "column 'tokens' of 'x' is of the Arrow format 'odd'");
    made.format = "+w:12x";
    refused<WrongType>(made, "has the Arrow format '+w:12x'");

    contradicts([](Made& m) { m.arrays[0].length = -1; });
    contradicts([](Made& m) { m.arrays[0].offset = -1; });
    contradicts([](Made& m) { m.arrays[0].offset = INT64_MAX; });
    contradicts([](Made& m) { m.arrays[0].length = INT64_MAX; });
    contradicts([](Made& m) { m.arrays[0].n_children = 0; });
    contradicts([](Made& m) { m.arrays[0].buffers = nullptr; });
    contradicts([](Made& m) { m.buffers[1][1] = nullptr; });
    contradicts([](Made& m) { m.buffers[0][1] = nullptr; });
    contradicts([](Made& m) { m.children[0].length = -5; });
    contradicts([](Made& m) { m.children[0].length = INT64_MAX; });
    contradicts([](Made& m) { m.children[0].offset = INT64_MAX; });
    contradicts([](Made& m) { m.children[0].n_buffers = 3; });
    contradicts([](Made& m) { m.format = "+w:2"; });
    contradicts([](Made& m) {
        m.format = "+w:9";
        m.arrays[0].n_buffers = 1;
    });
    contradicts([](Made& m) {
        m.format = "+w:2147483647";
        m.arrays[0].n_buffers = 1;
        m.arrays[0].length = INT64_MAX / 4;
    });
}

}  // namespace

int main() {
    lists_are_read_and_released();
    addresses_in_a_file_are_kept_without_arrays();
    refuses();
}
