"""Tiny language model that is trained here, by its own gradients: floats that mean something.

Rounding the weights of a random model changes nothing that a text could tell. This is a Llama of
characters: RMS norms, rotary embeddings, grouped queries and SwiGLU, trained by Adam on the
beginning of a novel. Gradients are written out, so that it needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gguf_models import TinyModel, tokens_of

Arrays = dict[str, np.ndarray]

TEXT = """\
it is a truth universally acknowledged, that a single man in possession of a good fortune, must be
in want of a wife. however little known the feelings or views of such a man may be on his first
entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families,
that he is considered the rightful property of some one or other of their daughters. "my dear mr.
bennet," said his lady to him one day, "have you heard that netherfield park is let at last?" mr.
bennet replied that he had not. "but it is," returned she; "for mrs. long has just been here, and
she told me all about it." mr. bennet made no answer. "do you not want to know who has taken it?"
cried his wife impatiently. "you want to tell me, and i have no objection to hearing it." this was
invitation enough. "why, my dear, you must know, mrs. long says that netherfield is taken by a
young man of large fortune from the north of england; that he came down on monday in a chaise and
four to see the place, and was so much delighted with it, that he agreed with mr. morris
immediately; that he is to take possession before michaelmas, and some of his servants are to be
in the house by the end of next week." "what is his name?" "bingley." "is he married or single?"
"oh! single, my dear, to be sure! a single man of large fortune; four or five thousand a year.
what a fine thing for our girls!" "how so? how can it affect them?" "my dear mr. bennet," replied
his wife, "how can you be so tiresome! you must know that i am thinking of his marrying one of
them." "is that his design in settling here?" "design! nonsense, how can you talk so! but it is
very likely that he may fall in love with one of them, and therefore you must visit him as soon as
he comes." "i see no occasion for that. you and the girls may go, or you may send them by
themselves, which perhaps will be still better, for as you are as handsome as any of them, mr.
bingley may like you the best of the party." "my dear, you flatter me. i certainly have had my
share of beauty, but i do not pretend to be anything extraordinary now. when a woman has five
grown-up daughters, she ought to give over thinking of her own beauty." "in such cases, a woman
has not often much beauty to think of." "but, my dear, you must indeed go and see mr. bingley when
he comes into the neighbourhood." "it is more than i engage for, i assure you." "but consider your
daughters. only think what an establishment it would be for one of them. sir william and lady
lucas are determined to go, merely on that account, for in general, you know, they visit no
newcomers. indeed you must go, for it will be impossible for us to visit him if you do not." "you
are over-scrupulous, surely. i dare say mr. bingley will be very glad to see you; and i will send
a few lines by you to assure him of my hearty consent to his marrying whichever he chooses of the
girls; though i must throw in a good word for my little lizzy." "i desire you will do no such
thing. lizzy is not a bit better than the others; and i am sure she is not half so handsome as
jane, nor half so good-humoured as lydia. but you are always giving her the preference." "they
have none of them much to recommend them," replied he; "they are all silly and ignorant like other
girls; but lizzy has something more of quickness than her sisters." "mr. bennet, how can you abuse
your own children in such a way? you take delight in vexing me. you have no compassion for my poor
nerves." "you mistake me, my dear. i have a high respect for your nerves. they are my old friends.
i have heard you mention them with consideration these last twenty years at least." "ah, you do
not know what i suffer." "but i hope you will get over it, and live to see many young men of four
thousand a year come into the neighbourhood." "it will be no use to us, if twenty such should
come, since you will not visit them." "depend upon it, my dear, that when there are twenty, i will
visit them all." mr. bennet was so odd a mixture of quick parts, sarcastic humour, reserve, and
caprice, that the experience of three-and-twenty years had been insufficient to make his wife
understand his character. her mind was less difficult to develop. she was a woman of mean
understanding, little information, and uncertain temper. when she was discontented, she fancied
herself nervous. the business of her life was to get her daughters married; its solace was
visiting and news. mr. bennet was among the earliest of those who waited on mr. bingley. he had
always intended to visit him, though to the last always assuring his wife that he should not go;
and till the evening after the visit was paid she had no knowledge of it. it was then disclosed in
the following manner. observing his second daughter employed in trimming a hat, he suddenly
addressed her with: "i hope mr. bingley will like it, lizzy." "we are not in a way to know what
mr. bingley likes," said her mother resentfully, "since we are not to visit." "but you forget,
mamma," said elizabeth, "that we shall meet him at the assemblies, and that mrs. long promised to
introduce him." "i do not believe mrs. long will do any such thing. she has two nieces of her own.
she is a selfish, hypocritical woman, and i have no opinion of her." "no more have i," said mr.
bennet; "and i am glad to find that you do not depend on her serving you." mrs. bennet deigned not
to make any reply, but, unable to contain herself, began scolding one of her daughters. "don't
keep coughing so, kitty, for heaven's sake! have a little compassion on my nerves. you tear them
to pieces." "kitty has no discretion in her coughs," said her father; "she times them ill." "i do
not cough for my own amusement," replied kitty fretfully. "when is your next ball to be, lizzy?"
"to-morrow fortnight." "aye, so it is," cried her mother, "and mrs. long does not come back till
the day before; so it will be impossible for her to introduce him, for she will not know him
herself." "then, my dear, you may have the advantage of your friend, and introduce mr. bingley to
her." "impossible, mr. bennet, impossible, when i am not acquainted with him myself; how can you
be so teasing?" "i honour your circumspection. a fortnight's acquaintance is certainly very
little. one cannot know what a man really is by the end of a fortnight. but if we do not venture
somebody else will; and after all, mrs. long and her neices must stand their chance; and,
therefore, as she will think it an act of kindness, if you decline the office, i will take it on
myself." the girls stared at their father. mrs.
""".replace("\n", " ")
"""Jane Austen, "Pride and Prejudice", chapters 1 and 2, in small letters."""

CHUNK = 64
"""Tokens of a sequence."""
_HELD_OUT_CHUNKS = 24
_EPSILON = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model; inputs of all layers are multiples of 128."""

    blocks: int = 2
    width: int = 128
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    size: int = 32


class TrainedModel:
    """A Llama of characters, after `steps` of Adam on 16 random sequences each."""

    def __init__(self, steps: int = 100, seed: int = 0) -> None:
        self.sizes = Sizes()
        characters = sorted(set(TEXT))
        self.vocabulary = len(tokens_of("llama"))
        text = np.array([characters.index(each) for each in TEXT], np.int32)
        count = len(text) // CHUNK - _HELD_OUT_CHUNKS
        self.training = text[: count * CHUNK]
        self.chunks = list(self.training.reshape((-1, CHUNK)))
        rest = text[count * CHUNK :][: _HELD_OUT_CHUNKS * CHUNK]
        self.held_out = list(rest.reshape((-1, CHUNK)))
        rng = np.random.default_rng(seed)
        s = self.sizes
        self.weights: Arrays = {}
        for name, shape in self._file().shapes().items():
            deviation = 1 if name.startswith("token_embd") else shape[-1] ** -0.5
            self.weights[name] = (
                np.ones(shape, np.float32)
                if len(shape) == 1
                else rng.normal(0, deviation, shape).astype(np.float32)
            )
        self.weights["output.weight"] *= 0.1
        half = s.size // 2
        angles = np.arange(CHUNK)[:, None] * 10_000.0 ** (-np.arange(half) / half)
        self._cosine = np.cos(angles).astype(np.float32)[:, None]
        self._sine = np.sin(angles).astype(np.float32)[:, None]
        self._train(steps, rng)

    def _file(self) -> TinyModel:
        s = self.sizes
        return TinyModel(
            "llama", blocks=s.blocks, width=s.width, hidden=s.hidden, heads=s.heads,
            kv_heads=s.kv_heads, size=s.size, context=CHUNK,
        )  # fmt: skip

    def write(self, path: Path) -> Path:
        """Write the model as a GGUF file of f32."""
        return replace(self._file(), weights=self.weights).write(path)

    def _train(self, steps: int, rng: np.random.Generator) -> None:
        first = {name: np.zeros_like(each) for name, each in self.weights.items()}
        second = {name: np.zeros_like(each) for name, each in self.weights.items()}
        for step in range(1, steps + 1):
            starts = rng.integers(0, len(self.training) - CHUNK, 16)
            sequences = np.stack([self.training[start : start + CHUNK + 1] for start in starts])
            gradients = self.gradients(sequences[:, :-1], sequences[:, 1:])[1]
            rate = 4e-3 * min(step / 10, 1) * (1 - (step - 1) / steps)
            for name, gradient in gradients.items():
                first[name] += 0.1 * (gradient - first[name])
                second[name] += 0.02 * (gradient**2 - second[name])
                mean = first[name] / (1 - 0.9**step)
                variance = second[name] / (1 - 0.98**step)
                self.weights[name] -= rate * mean / (np.sqrt(variance) + 1e-8)

    def surprises(self, tokens: np.ndarray) -> np.ndarray:
        """The negative log-likelihood of each token but the first of sequences ``[N, T]``."""
        return self.gradients(tokens[:, :-1], tokens[:, 1:])[0]

    def gradients(self, tokens: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, Arrays]:
        """The negative log-likelihoods of targets ``[N, T]``, and the gradients of their mean."""
        w, result = self.weights, {name: np.zeros_like(each) for name, each in self.weights.items()}
        tape = []
        x = w["token_embd.weight"][tokens]
        for number in range(self.sizes.blocks):
            for part in (self._attention, self._feed_forward):
                backward = part(f"blk.{number}", x, result)
                x, step = next(backward), backward
                tape.append(step)
        norm = _norm(x, w["output_norm.weight"])
        normed = next(norm)
        logits = normed @ w["output.weight"].T
        logits = logits - logits.max(-1, keepdims=True)
        probabilities = np.exp(logits)
        probabilities /= probabilities.sum(-1, keepdims=True)
        rows = np.indices(targets.shape)
        surprises = -np.log(probabilities[(*rows, targets)])
        probabilities[(*rows, targets)] -= 1
        d_logits = probabilities / targets.size
        result["output.weight"] += _outer(d_logits, normed)
        d_x, result["output_norm.weight"] = norm.send(d_logits @ w["output.weight"])
        for step in reversed(tape):
            d_x = step.send(d_x)
        np.add.at(result["token_embd.weight"], tokens, d_x)
        return surprises, result

    def _attention(self, block: str, x: np.ndarray, gradients: Arrays) -> Generator[Any, Any, None]:
        """Yield ``x + attention(norm(x))``, take its gradient, and yield that of ``x``."""
        s, w = self.sizes, self.weights
        batch, count, _ = x.shape
        norm = _norm(x, w[f"{block}.attn_norm.weight"])
        normed = next(norm)
        heads = {"q": s.heads, "k": s.kv_heads, "v": s.kv_heads}
        q, k, v = (
            (normed @ w[f"{block}.attn_{name}.weight"].T).reshape((batch, count, heads[name], -1))
            for name in "qkv"
        )
        q, k = (self._rotated(each, 1) for each in (q, k))
        group = s.heads // s.kv_heads
        q, keys, values = (
            each.transpose((0, 2, 1, 3))
            for each in (q, np.repeat(k, group, 2), np.repeat(v, group, 2))
        )
        scores = q @ keys.transpose((0, 1, 3, 2)) * np.float32(s.size**-0.5)
        scores = np.where(np.tri(count, dtype=bool), scores, np.float32(-1e9))
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        attended = (probabilities @ values).transpose((0, 2, 1, 3)).reshape((batch, count, -1))
        output = w[f"{block}.attn_output.weight"]
        d_y = yield x + attended @ output.T
        gradients[f"{block}.attn_output.weight"] += _outer(d_y, attended)
        d_attended = (d_y @ output).reshape((batch, count, s.heads, -1)).transpose((0, 2, 1, 3))
        d_probabilities = d_attended @ values.transpose((0, 1, 3, 2))
        d_scores = probabilities * (
            d_probabilities - (d_probabilities * probabilities).sum(-1, keepdims=True)
        )
        d_scores *= np.float32(s.size**-0.5)
        d_heads = {
            "q": d_scores @ keys,
            "k": d_scores.transpose((0, 1, 3, 2)) @ q,
            "v": probabilities.transpose((0, 1, 3, 2)) @ d_attended,
        }
        d_normed = np.zeros_like(normed)
        for name, gradient in d_heads.items():
            each = gradient.transpose((0, 2, 1, 3))
            each = each.reshape((batch, count, heads[name], -1, s.size)).sum(3)
            each = each if name == "v" else self._rotated(each, -1)
            each = each.reshape((batch, count, -1))
            gradients[f"{block}.attn_{name}.weight"] += _outer(each, normed)
            d_normed += each @ w[f"{block}.attn_{name}.weight"]
        d_x, gradients[f"{block}.attn_norm.weight"] = norm.send(d_normed)
        yield d_y + d_x

    def _feed_forward(
        self, block: str, x: np.ndarray, gradients: Arrays
    ) -> Generator[Any, Any, None]:
        """Yield ``x + down(silu(gate) * up)`` of the norm, as `_attention`."""
        gate_w, up_w, down_w = (
            self.weights[f"{block}.ffn_{name}.weight"] for name in ("gate", "up", "down")
        )
        norm = _norm(x, self.weights[f"{block}.ffn_norm.weight"])
        normed = next(norm)
        gate, up = normed @ gate_w.T, normed @ up_w.T
        logistic = 1 / (1 + np.exp(-gate))
        inner = gate * logistic * up
        d_y = yield x + inner @ down_w.T
        gradients[f"{block}.ffn_down.weight"] += _outer(d_y, inner)
        d_inner = d_y @ down_w
        d_up = d_inner * gate * logistic
        d_gate = d_inner * up * logistic * (1 + gate * (1 - logistic))
        gradients[f"{block}.ffn_up.weight"] += _outer(d_up, normed)
        gradients[f"{block}.ffn_gate.weight"] += _outer(d_gate, normed)
        d_x, gradients[f"{block}.ffn_norm.weight"] = norm.send(d_up @ up_w + d_gate @ gate_w)
        yield d_y + d_x

    def _rotated(self, heads: np.ndarray, direction: int) -> np.ndarray:
        """Rotate neighboring elements of heads ``[N, T, H, D]`` by their positions' angles."""
        count = heads.shape[1]
        cosine, sine = self._cosine[:count], direction * self._sine[:count]
        a, b = heads[..., ::2], heads[..., 1::2]
        return np.stack([a * cosine - b * sine, b * cosine + a * sine], -1).reshape(heads.shape)


def _norm(x: np.ndarray, weight: np.ndarray) -> Generator[Any, Any, None]:
    """Yield the RMS norm, take its gradient, and yield those of ``x`` and of the weight."""
    inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(_EPSILON))
    normed = x * inverse
    d_y = yield normed * weight
    d_normed = d_y * weight
    d_x = inverse * (d_normed - normed * (d_normed * normed).mean(-1, keepdims=True))
    yield d_x, (d_y * normed).sum((0, 1))


def _outer(d_y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient of a weight ``[N, K]`` of ``y = x @ weight.T``."""
    return d_y.reshape((-1, d_y.shape[-1])).T @ x.reshape((-1, x.shape[-1]))
