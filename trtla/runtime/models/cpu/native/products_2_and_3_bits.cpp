// Products of weights of 2 and 3 bits.
#include "matmul.h"

TRTLA_PRODUCT(BlockProduct<Q2_K>);
TRTLA_PRODUCT(BlockProduct<Q3_K>);
