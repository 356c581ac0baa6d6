// Who waits where, for the report of a block that cannot go on.
#pragma once

#include <vq/host_api.h>

#include <span>
#include <string>

namespace vqgen::host {

enum class ThreadState : unsigned char { ready, waiting, returned };

// Where a waiting thread waits.
struct Wait {
  vq::host::Collective collective;
  vq::host::Site site;
};

bool same_place(const Wait& a, const Wait& b);

// "sync_block (attention.cuh:40)"
std::string name_of(const Wait& wait);

// "0-31, 40": ascending thread numbers, the later ones cut short.
std::string thread_list(std::span<const int> threads);

// "threads 0-30 wait at shuffle_xor (a.cuh:9), thread 31 has returned". `states` and `waits` by
// thread.
std::string who_waits_where(std::span<const ThreadState> states, std::span<const Wait> waits);

}  // namespace vqgen::host
