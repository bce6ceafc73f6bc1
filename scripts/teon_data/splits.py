"""Splits of a data set by the names of its files and folders, and which of them are for training and for validation."""

import re

from .files import UsageError, counted

ROLES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"),
         "test": ("test", "testing", "eval", "evaluation")}
ROLE_OF = {word: role for role, words in ROLES.items() for word in words}
WORD = "|".join(sorted(ROLE_OF, key=len, reverse=True))
# train, train-00000-of-00010, c4-train.00000-of-00512, english_train, train_sft-00000-of-00003, train_2
NAME = re.compile(rf"(?:.*[-_. ])?({WORD})(?:[-_. ]?[0-9]+(?:[-_]of[-_][0-9]+)?(?:-[0-9a-f]{{8,}})?)?")
HUB_NAME = re.compile(rf"((?:{WORD})_[a-z0-9_]+)-[0-9]+-of-[0-9]+(?:-[0-9a-f]{{8,}})?")
FOLDER = re.compile(rf"(?:split=)?({WORD})")
ENDINGS = re.compile(r"\.[a-z]+[0-9]?$")


def split_of(path):
    """Returns the split that a relative path names, by the outermost folder that does or by the file, or ''."""
    *folders, name = path.lower().split("/")
    for folder in folders:
        if match := FOLDER.fullmatch(folder):
            return match[1]
    while not (match := NAME.fullmatch(name) or HUB_NAME.fullmatch(name)) and ENDINGS.search(name):
        name = ENDINGS.sub("", name)
    return match[1] if match else ""


def role_of(split):
    """Returns the role of a split: train_sft and training are for training. '' if its name does not tell."""
    return next((ROLE_OF[word] for word in re.split("[^a-z]+", split.lower()) if word in ROLE_OF), "")


def divide(files, wanted, held_out):
    """Divides [(path, split)] and returns (paths for training, paths for validation, a line for the user or None).

    `wanted` is --split: a split's name, "all" for one text, or None: the training split with the validation split,
    else the test split, beside it. `held_out`: the validation text is another, so that only the first is chosen.
    """
    if wanted == "all":
        return [path for path, _ in files], [], None
    splits = {}
    for path, split in files:
        splits.setdefault(split, []).append(path)
    listed = ", ".join(f"{split or 'no split'} ({counted(len(paths), 'file')})" for split, paths in splits.items())
    if wanted:
        if wanted not in splits:
            raise UsageError(f"--split {wanted}: no such split; the input has {listed}")
        return splits[wanted], [], None
    by_role = {}
    for split, paths in splits.items():
        by_role.setdefault(role_of(split), []).extend(paths)
    if len(by_role) == 1:
        line = f"the input has {listed}, read as one text; --split chooses one" if len(splits) > 1 else None
        return [path for path, _ in files], [], line
    if "train" not in by_role or "" in by_role:
        raise UsageError(f"the input has {listed}: name one for training with --split, or read all as one text with "
                         "--split all")
    used = None if held_out else next(role for role in ("validation", "test") if role in by_role)
    rest = [role for role in by_role if role not in ("train", used)]
    return by_role["train"], by_role[used] if used else [], (
        f"splits by their names: {listed}; training on train" + (f", validating on {used}" if used else "") +
        (f", not reading {', '.join(rest)}" if rest else "") + "; --split chooses another, --split all reads one text")
