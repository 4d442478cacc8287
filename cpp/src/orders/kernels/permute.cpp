#include "orders/kernels/permute.hpp"

#include "orders/kernels/permute_lanes.hpp"

namespace windeck::WINDECK_ISA {
namespace {

constexpr std::size_t block = 1024;
constexpr std::size_t portion = std::size_t{1} << 31;
constexpr std::size_t slack = 128;  // bytes that may be read or written after the last value

/// The rounds as registers. Bits above the domain are not cleared in between: sums and products
/// never carry them down, and folding masks what it brings down.
template <typename Lanes>
struct Cipher {
    using Lane = typename Lanes::Lane;
    using Register = typename Lanes::Register;

    Register a[Rounds::count], c[Rounds::count];
    Register pre, post, low, mask, size;
    typename Lanes::Shift shift;

    explicit Cipher(const Rounds& rounds)
        : pre(all(rounds.pre)),
          post(all(rounds.post)),
          low(all(rounds.mask >> rounds.shift)),
          mask(all(rounds.mask)),
          size(all(rounds.size)),
          shift(shift_by(rounds.shift, typename Lanes::Shift{})) {
        for (unsigned r = 0; r < Rounds::count; ++r) {
            a[r] = all(rounds.a[r]);
            c[r] = all(rounds.c[r]);
        }
    }

    static Register all(std::uint64_t v) { return Lanes::all(static_cast<Lane>(v)); }

    template <unsigned n>
    void operator()(Register (&x)[n]) const {
        for (auto& v : x)
            v = Lanes::fold(Lanes::plus(v, pre), shift, low);
        for (unsigned r = 0; r < Rounds::count; ++r) {
            for (auto& v : x)
                v = Lanes::plus(Lanes::times(v, a[r]), c[r]);
            for (auto& v : x)
                v = Lanes::fold(v, shift, low);
        }
        for (auto& v : x)
            v = Lanes::clear(Lanes::plus(v, post), mask);
    }
};

/// Writes blocks of images, and walks those that lie outside until they are inside. They are
/// collected over many blocks, so that nearly all work is done on full registers.
template <typename Lanes>
class Walker {
  public:
    using Lane = typename Lanes::Lane;

    Walker(const Rounds& rounds, std::int64_t* out)
        : cipher_(rounds), whole_(rounds.size - 1 == rounds.mask), out_(out) {}

    /// out[base + j] = image of source(j), a register of values, for j < n <= block.
    template <typename Source>
    void write(std::size_t base, std::size_t n, Source source) {
        alignas(64) Lane value[stride];
        alignas(64) std::uint32_t place[stride];
        Appended<Lane> to{value_ + left_, place_ + left_};
        for (std::size_t j = 0; j < n; j += stride) {
            const std::size_t ours = n - j < stride ? n - j : stride;
            Registers x;
            for (unsigned i = 0; i < Lanes::chains; ++i) {
                x[i] = source(j + i * Lanes::width);
            }
            encipher(x, value);
            std::int64_t* const out = out_ + base + j;
            if (ours == stride) {
                // As below, with a count known beforehand: no loop is left of it.
                for (std::size_t i = 0; i < stride; ++i) {
                    out[i] = static_cast<std::int64_t>(value[i]);
                }
            } else {
                for (std::size_t i = 0; i < ours; ++i) {
                    out[i] = static_cast<std::int64_t>(value[i]);
                }
            }
            if (whole_) continue;
            for (std::size_t i = 0; i < stride; ++i) {
                place[i] = static_cast<std::uint32_t>(base + j + i);
            }
            collect(x, value, place, ours, to);
        }
        left_ = static_cast<std::size_t>(to.value - value_);
        while (left_ >= enough)
            walk(enough);
    }

    /// Walks what is left.
    void finish() {
        while (left_ != 0)
            walk(left_ < enough ? left_ : enough);
    }

  private:
    static constexpr unsigned stride = Lanes::chains * Lanes::width;
    static constexpr std::size_t enough = 512;

    using Registers = typename Lanes::Register[Lanes::chains];

    /// The images, in the registers and in memory.
    void encipher(Registers& x, Lane* value) const {
        cipher_(x);
        for (unsigned i = 0; i < Lanes::chains; ++i)
            Lanes::store(value + i * Lanes::width, x[i]);
    }

    /// Those of the first `ours` images that lie outside go on being walked.
    void collect(const Registers& x, const Lane* value, const std::uint32_t* place,
                 std::size_t ours, Appended<Lane>& to) const {
        for (unsigned i = 0; i < Lanes::chains; ++i) {
            const unsigned at = i * Lanes::width;
            std::uint32_t outside = Lanes::at_least(x[i], cipher_.size);
            if (ours < at + Lanes::width) {
                outside &= ours <= at ? 0 : (1U << (ours - at)) - 1;
            }
            Lanes::keep(value + at, place + at, outside, to);
        }
    }

    /// One more step for the last n of those left.
    void walk(std::size_t n) {
        alignas(64) Lane value[stride];
        const std::size_t first = left_ - n;
        Appended<Lane> to{value_ + first, place_ + first};
        for (std::size_t j = first; j < left_; j += stride) {
            const std::size_t ours = left_ - j < stride ? left_ - j : stride;
            Registers x;
            for (unsigned i = 0; i < Lanes::chains; ++i) {
                x[i] = Lanes::load(value_ + j + i * Lanes::width);
            }
            encipher(x, value);
            for (std::size_t i = 0; i < ours; ++i) {
                out_[place_[j + i]] = static_cast<std::int64_t>(value[i]);
            }
            collect(x, value, place_ + j, ours, to);
        }
        left_ = static_cast<std::size_t>(to.value - value_);
    }

    Cipher<Lanes> cipher_;
    bool whole_;
    std::int64_t* out_;
    std::size_t left_ = 0;
    alignas(64) Lane value_[block + enough + slack];
    alignas(64) std::uint32_t place_[block + enough + slack];
};

template <typename Lanes>
void range(const Rounds& rounds, std::uint64_t start, std::size_t count, std::int64_t* out) {
    using Lane = typename Lanes::Lane;
    Walker<Lanes> walker(rounds, out);
    for (std::size_t base = 0; base < count; base += block) {
        const auto first = static_cast<Lane>(start + base);
        walker.write(base, count - base < block ? count - base : block, [first](std::size_t j) {
            return Lanes::count_from(first + static_cast<Lane>(j));
        });
    }
    walker.finish();
}

template <typename Lanes>
void take(const Rounds& rounds, const std::int64_t* in, std::size_t count, std::int64_t* out) {
    using Lane = typename Lanes::Lane;
    Walker<Lanes> walker(rounds, out);
    alignas(64) Lane from[block + slack];
    for (std::size_t base = 0; base < count; base += block) {
        const std::size_t n = count - base < block ? count - base : block;
        for (std::size_t j = 0; j < n; ++j) {
            // A value outside [0, size) may be on a cycle outside of it: it is treated as 0.
            const auto x = static_cast<std::uint64_t>(in[base + j]);
            from[j] = static_cast<Lane>(x < rounds.size ? x : 0);
        }
        walker.write(base, n, [&from](std::size_t j) { return Lanes::load(from + j); });
    }
    walker.finish();
}

}  // namespace

// Places are numbers of 32 bits, so long outputs are cut into portions.

void permute_range(const Rounds& rounds, std::uint64_t start, std::size_t count,
                   std::int64_t* out) {
    for (std::size_t done = 0; done < count; done += portion) {
        const std::size_t n = count - done < portion ? count - done : portion;
        if (rounds.bits <= 32) {
            range<Lanes32>(rounds, start + done, n, out + done);
        } else {
            range<Lanes64>(rounds, start + done, n, out + done);
        }
    }
}

void permute_take(const Rounds& rounds, const std::int64_t* in, std::size_t count,
                  std::int64_t* out) {
    for (std::size_t done = 0; done < count; done += portion) {
        const std::size_t n = count - done < portion ? count - done : portion;
        if (rounds.bits <= 32) {
            take<Lanes32>(rounds, in + done, n, out + done);
        } else {
            take<Lanes64>(rounds, in + done, n, out + done);
        }
    }
}

}  // namespace windeck::WINDECK_ISA
