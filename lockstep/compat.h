#pragma once

// TensorFlow's own names over Lockstep's strategies, for ported programs: compat::v1 is `tf.compat.v1.distribute`,
// compat::v2 the MultiWorkerMirroredStrategy of TensorFlow 2.0. New programs need only lockstep/lockstep.h.

#include "lockstep/compat/v1.h"
#include "lockstep/compat/v2.h"
