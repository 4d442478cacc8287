#include "windeck/base/guard.hpp"

#include <pthread.h>

#include <csetjmp>
#include <csignal>
#include <mutex>

namespace windeck {
namespace {

/// The place where a thread continues after a fault; frames of nested calls form a list.
struct JumpFrame {
    sigjmp_buf jump;
    JumpFrame* outer;
};

thread_local JumpFrame* innermost = nullptr;
thread_local volatile std::sig_atomic_t chaining = 0;

// One handler for the process, counted. The lock is held for a few instructions at a time.
std::mutex installing;
int in_flight = 0;
struct sigaction previous{};

void default_action() {
    struct sigaction fallback{};
    fallback.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &fallback, nullptr);
}

/// Handles a signal that is not a fault in a guarded call. The default action, if that was the
/// previous one, is set and taken when the fault repeats, or at once for a signal from a process.
void call_previous(int number, siginfo_t* info, void* context) {
    const bool fault = info->si_code > 0;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler == SIG_DFL || (previous.sa_handler == SIG_IGN && fault)) {
        default_action();
        if (!fault) std::raise(number);
    } else if (previous.sa_handler != SIG_IGN) {
        previous.sa_handler(number);
    }
}

void on_fault(int number, siginfo_t* info, void* context) {
    if (innermost != nullptr && info->si_code > 0) siglongjmp(innermost->jump, 1);
    if (chaining != 0) {
        // The previous handler raised the signal again and expects the default action.
        default_action();
        std::raise(number);
        return;
    }
    chaining = 1;
    call_previous(number, info, context);
    chaining = 0;
}

bool is_ours(const struct sigaction& action) {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_fault;
}

/// SA_NODEFER leaves SIGBUS unblocked in the handler, so that a jump out of it has no signal mask
/// to restore.
void install() {
    struct sigaction now{};
    sigaction(SIGBUS, nullptr, &now);
    if (is_ours(now)) return;
    struct sigaction ours{};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    previous = now;
    sigaction(SIGBUS, &ours, nullptr);
}

void restore() {
    struct sigaction now{};
    sigaction(SIGBUS, nullptr, &now);
    if (is_ours(now)) sigaction(SIGBUS, &previous, nullptr);
}

/// The handler is installed, and SIGBUS unblocked in this thread, during the life of a Guard.
class Guard {
  public:
    Guard() {
        {
            const std::lock_guard lock(installing);
            if (in_flight++ == 0) install();
        }
        sigset_t bus;
        sigemptyset(&bus);
        sigaddset(&bus, SIGBUS);
        pthread_sigmask(SIG_UNBLOCK, &bus, &before_);
    }

    ~Guard() {
        if (sigismember(&before_, SIGBUS) == 1) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
        const std::lock_guard lock(installing);
        if (--in_flight == 0) restore();
    }

    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

  private:
    sigset_t before_;
};

/// The frame is the innermost of this thread during the life of an ActiveFrame.
class ActiveFrame {
  public:
    explicit ActiveFrame(JumpFrame& frame) : frame_(frame) {
        frame.outer = innermost;
        innermost = &frame;
    }
    ~ActiveFrame() { innermost = frame_.outer; }

    ActiveFrame(const ActiveFrame&) = delete;
    ActiveFrame& operator=(const ActiveFrame&) = delete;

  private:
    JumpFrame& frame_;
};

/// A function of its own, so that no variable of the caller is live across the jump.
[[gnu::noinline]] bool run_until_fault(JumpFrame& frame, void (*body)(void*), void* argument) {
    if (sigsetjmp(frame.jump, 0) != 0) return false;
    body(argument);
    return true;
}

// A child of fork has only one thread, which is in no guarded call.
[[maybe_unused]] const int registered =
    pthread_atfork([] { installing.lock(); }, [] { installing.unlock(); },
                   [] {
                       if (in_flight != 0) restore();
                       in_flight = 0;
                       installing.unlock();
                   });

}  // namespace

bool run_guarded(void (*body)(void*), void* argument) {
    const Guard guard;
    JumpFrame frame;
    const ActiveFrame active(frame);
    return run_until_fault(frame, body, argument);
}

}  // namespace windeck
