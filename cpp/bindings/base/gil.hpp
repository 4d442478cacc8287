// Release and acquisition of the GIL that outlive the interpreter's exit.
//
// A daemon thread that asks for the GIL while the interpreter ends does not get it. Before Python
// 3.14 the thread is ended by pthread_exit, whose unwinding aborts the process at the first
// destructor that it meets, and would run others that need the GIL. Here the thread sleeps instead
// until the process is gone, as it does in Python 3.14.

#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace windeck {

/// Return take(), which acquires the GIL; never return at the interpreter's exit.
template <typename Take>
auto take_gil(const Take& take) noexcept {
    try {
        return take();
    } catch (...) {  // the unwinding of pthread_exit, which must not go on
        for (;;)
            pause();
    }
}

/// The GIL is released during the life of a GilRelease.
class GilRelease {
  public:
    GilRelease() : state_(PyEval_SaveThread()) {}
    ~GilRelease() {
        take_gil([this] { PyEval_RestoreThread(state_); });
    }

    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

  private:
    PyThreadState* state_;
};

/// The GIL is held during the life of a GilAcquire, in any thread.
class GilAcquire {
  public:
    GilAcquire() : state_(take_gil(PyGILState_Ensure)) {}
    ~GilAcquire() { PyGILState_Release(state_); }

    GilAcquire(const GilAcquire&) = delete;
    GilAcquire& operator=(const GilAcquire&) = delete;

  private:
    PyGILState_STATE state_;
};

}  // namespace windeck
