// Products of floats.
#include "matmul.h"

TRTLA_PRODUCT(FloatProduct<float, float>);
TRTLA_PRODUCT(FloatProduct<float, Float16>);
TRTLA_PRODUCT(FloatProduct<float, BFloat16>);
TRTLA_PRODUCT(FloatProduct<BFloat16, BFloat16>);
