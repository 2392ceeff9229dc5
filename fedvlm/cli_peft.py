"""``--peft prompt+lora``: one flag for the three keys that say what is trained.

========= ================================================================ ===================
word      what is trained                                                  sets
========= ================================================================ ===================
prompt    a text context (CoOp)                                            PEFT.TEXT prompt
text-lora LoRA inside the text tower                                       PEFT.TEXT lora
feature   an adapter on the image feature                                  PEFT.VISUAL feature
lora      LoRA inside the image tower                                      PEFT.VISUAL lora
adapter   two adapters in each block of the image tower                    PEFT.VISUAL adapter
head      a linear classifier that starts as the template's text features  PEFT.HEAD linear
========= ================================================================ ===================

What is not named is off: text none, visual none, head text. ``prompt`` and ``head`` exclude each
other. Sizes stay keys: PEFT.RANK, ALPHA, TARGETS, BLOCKS, WIDTH, N_CTX, LORA_AVG.
"""

from __future__ import annotations

from fedvlm.errors import ConfigError, did_you_mean

OFF = {"PEFT.TEXT": "none", "PEFT.VISUAL": "none", "PEFT.HEAD": "text"}
WORDS = {
    "prompt": ("PEFT.TEXT", "prompt"),
    "text-lora": ("PEFT.TEXT", "lora"),
    "feature": ("PEFT.VISUAL", "feature"),
    "lora": ("PEFT.VISUAL", "lora"),
    "adapter": ("PEFT.VISUAL", "adapter"),
    "head": ("PEFT.HEAD", "linear"),
}


def expand(value: str) -> dict[str, str]:
    """Return the config keys that the words of ``--peft`` set.

    Raises:
        ConfigError: an unknown word, or two words for one key.
    """
    found: dict[str, str] = {}
    by: dict[str, str] = {}
    for word in (w.strip().lower().replace("_", "-") for w in value.split("+")):
        if word not in WORDS:
            raise ConfigError(
                f"--peft has no '{word}'{did_you_mean(word, WORDS)} ({', '.join(WORDS)}; "
                "joined by +, as in prompt+lora)"
            )
        key, to = WORDS[word]
        if key in found and by[key] != word:
            raise ConfigError(f"--peft {value}: {by[key]} and {word} both set {key}; choose one")
        found[key], by[key] = to, word
    if "head" in by.values() and "PEFT.TEXT" in found:
        raise ConfigError(
            f"--peft {value}: a linear head has no text side; drop head or {by['PEFT.TEXT']}"
        )
    return OFF | found


def words_of(text: str, visual: str, head: str) -> str:
    """Return the words of ``--peft`` for the three keys: ``prompt+lora``; ``none`` for nothing."""
    asked = {"PEFT.TEXT": text, "PEFT.VISUAL": visual, "PEFT.HEAD": head}
    words = [word for word, (key, value) in WORDS.items() if asked[key] == value]
    return "+".join(words) or "none"
