// Types that are wrong are found by verify-quantization; what is left are the options.

// RUN: not subquant opt %s --passes "lower-quant-casts{rounding=up}" 2>&1 | filecheck %s --check-prefix=ROUNDING
// ROUNDING: error: option 'rounding' of lower-quant-casts must be one of nearest-even, toward-zero, got 'up'

// RUN: not subquant opt %s --passes "lower-quant-casts{division=fast}" 2>&1 | filecheck %s --check-prefix=DIVISION
// DIVISION: error: option 'division' of lower-quant-casts must be one of native, exact, deferred, got 'fast'

// RUN: not subquant opt %s --passes "lower-quant-casts{speed=9}" 2>&1 | filecheck %s --check-prefix=UNKNOWN
// UNKNOWN: error: pass 'lower-quant-casts' has no option 'speed=9'; expected name=value with a name among: rounding, division

func.func @f() {
  return
}
