// How this machine marks a function that both sides may call. Plain C++ needs no mark; the host
// layers of vqgen read the args and layout headers through this file too.
#pragma once
#define VQ_HD
