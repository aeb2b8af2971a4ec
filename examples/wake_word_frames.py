"""Compute the inputs of a wake-word model of pymicro-wakeword from speech.

    espeak-ng -v en-us --stdout "alexa" > alexa.wav
    python examples/wake_word_frames.py alexa.wav frames.npy

Each input is a spectrogram of 3 times 10 ms with 40 channels, quantized as the models expect:
``i8`` of scale 26 / 255 and zero point -128. Needs PyPI's ``pymicro-features``.
"""

from __future__ import annotations

import sys
import wave

import numpy as np
from pymicro_features import MicroFrontend

RATE, STRIDE, SCALE, ZERO_POINT = 16_000, 3, 26.0 / 255, -128

with wave.open(sys.argv[1]) as file:  # one channel of 16-bit samples
    rate = file.getframerate()
    samples = np.frombuffer(file.readframes(1 << 30), "<i2").astype(np.float64)
at = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
speech = np.interp(at, np.arange(len(samples)), samples).astype("<i2")
quiet = np.zeros(RATE // 2, "<i2")

frontend, rows = MicroFrontend(), []
sound = np.concatenate([quiet, speech, quiet]).tobytes()
while len(sound) >= RATE // 100 * 2:
    output = frontend.process_samples(sound[: RATE // 100 * 2])
    sound = sound[output.samples_read * 2 :]
    if output.features:
        rows.append(output.features)

stored = np.clip(np.rint(np.array(rows) / SCALE + ZERO_POINT), -128, 127).astype(np.int8)
whole = len(stored) // STRIDE * STRIDE
frames = stored[:whole].reshape(-1, 1, STRIDE, stored.shape[1])
np.save(sys.argv[2], frames)
print("x".join(str(extent) for extent in frames.shape))
