"""Words of the code and its glossary: the field's standard terms, one meaning each (docs/glossary.md)."""

import collections
import re

import pytest

from tests.checks.sources import PACKAGES, ROOT, classes, docstrings, functions

RELATIVE = re.compile(r"(What|Who|Whose|Whom|Which|Whether|How|Where|When|Of)\b")
VAGUE = re.compile(r"_*(tell|look|settle|come|came|went)(_(?!up$)\w+)?")
GLOSSARY_TERMS_MAX = 80


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package: str) -> None:
    wrong = [f"{place}: {text[:60]}" for place, text in docstrings(package) if RELATIVE.match(text)]
    assert not wrong, "\n".join(wrong)


def test_functions_say_what_they_do() -> None:
    wrong = [f"{place}: {name}" for place, name in functions() if VAGUE.fullmatch(name)]
    assert not wrong, "\n".join(wrong)


def test_a_class_name_has_one_meaning() -> None:
    places = collections.defaultdict(list)
    for place, name in classes():
        places[name].append(str(place))
    twice = [f"{name}: {', '.join(where)}" for name, where in places.items() if len(where) > 1]
    assert not twice, "\n".join(twice)


def test_the_glossary_is_short_sorted_and_plain() -> None:
    terms: list[str] = []
    for section in (ROOT / "docs" / "glossary.md").read_text().split("\n## ")[1:]:
        rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)[1:]
        names = [name for name, _ in rows]
        assert names == sorted(names)
        terms += names
        for name, meaning in rows:
            assert not RELATIVE.match(meaning), name
            assert not re.search(r"\b(tells?|told|looks?|settles?|settled|comes?|came|goes|went)\b", meaning), name
            assert meaning.endswith("."), name
    assert 0 < len(terms) == len(set(terms)) <= GLOSSARY_TERMS_MAX
