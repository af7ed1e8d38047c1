// What Python can call.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
