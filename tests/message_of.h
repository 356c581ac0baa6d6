// Errors judged by their words.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/error.h"

namespace vqgen {

// The message of the Error that `call` throws, which must be of `kind` and one line; "" and a test
// failure if it throws none.
template <class Call>
std::string message_of(Call&& call, ErrorKind kind = ErrorKind::bad_input) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

// The message of an Error(device).
template <class Call>
std::string device_error(Call&& call) {
  return message_of(std::forward<Call>(call), ErrorKind::device);
}

}  // namespace vqgen
