"""Elements: escaped, ranked, signed."""

from __future__ import annotations

import pytest

from fedvlm.report.pages.grid import table
from fedvlm.report.pages.html import Html, cell, element, signed_text, to_html


def test_elements_escape_what_is_not_theirs():
    found = element("td", "<b>&\"'", Html("<i>x</i>"), None, 3, title='"><x', data_n=1, hidden=True,
                    class_=None)
    assert found == ('<td title="&quot;&gt;&lt;x" data-n="1" hidden>&lt;b&gt;&amp;&quot;&#x27;'
                     "<i>x</i>3</td>")
    assert element("meta", name="a") == '<meta name="a">'
    assert to_html("a\nb\x00") == "a\\nb\\x00"


def test_a_table_ranks_numbers_and_keeps_unknown_ones_apart():
    found = table(["a", "b"], [["x", cell("1.5 %", 1.5)], ["y", cell("-", None)]], sortable=True)
    assert 'data-value="1.5"' in found and 'data-value=""' in found
    assert '<th scope="col" class="number">b</th>' in found
    assert found.count('scope="row"') == 2


@pytest.mark.parametrize(("value", "words"), [(1.25, "+1.2"), (-3.0, "\N{MINUS SIGN}3.0"),
                                              (-0.04, "0.0"), (0.0, "0.0")])
def test_differences_have_a_sign(value: float, words: str):
    assert signed_text(value) == words
