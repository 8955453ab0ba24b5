// The real cuDNN, which answers what needs no GPU.
#pragma once
#include <cudnn.h>
#include <dlfcn.h>
extern __attribute__((visibility("hidden"))) void* real_cudnn;
#define REAL(NAME) ((decltype(&NAME))dlsym(real_cudnn, #NAME))
