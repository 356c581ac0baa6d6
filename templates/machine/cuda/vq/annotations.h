// How this machine marks a function that both sides may call. The CUDA side.
#pragma once
#define VQ_HD __host__ __device__
