"""What `make docs` says about a built site."""

from pathlib import Path

import check_site
import pytest


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    (tmp_path / "index.html").write_text('<h1 id="top">x</h1><a href="part/page.html#here">y</a>')
    (tmp_path / "part" / "page.html").write_text('<p id="here"></p><a href="../index.html"></a>')
    return tmp_path


def test_a_good_site_has_no_problems(site: Path) -> None:
    assert list(check_site.problems(site)) == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<a href="gone.html">', "index.html links to gone.html, which does not exist"),
        ('<img src="gone.svg">', "index.html links to gone.svg, which does not exist"),
        ('<a href="part/page.html#gone">', "links to part/page.html#gone, and there is no such place"),
        ('<a href="#gone">', "links to #gone, and there is no such place"),
        ('<script src="https://example.org/x.js">', "loads https://example.org/x.js, which needs a network"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
    ],
)
def test_a_dead_link_or_a_network_is_a_problem(site: Path, html: str, problem: str) -> None:
    (site / "index.html").write_text(html)
    (found,) = check_site.problems(site)
    assert problem in found


def test_links_to_other_sites_are_fine(site: Path) -> None:
    (site / "index.html").write_text('<a href="https://example.org">x</a>')
    assert list(check_site.problems(site)) == []


def test_templates_of_the_theme_are_no_pages(site: Path) -> None:
    (site / "_static").mkdir()
    (site / "_static" / "macros.html").write_text('<a href="gone.html">')
    assert list(check_site.problems(site)) == []


def test_every_public_name_must_be_in_the_inventory() -> None:
    names = check_site.public_names()
    assert {
        "pfge.PFGE",
        "pfge.collectors.PFGE",
        "pfge.metrics.brier_score",
        "pfge.export.export_onnx",
    } <= names
    assert list(check_site.missing_names(names)) == []
    assert list(check_site.missing_names(names - {"pfge.PFGE"})) == [
        "pfge.PFGE cannot be found: it is in no page of docs/api"
    ]


def test_the_exit_code_tells_whether_something_is_wrong(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_site, "inventory", lambda _: check_site.public_names())
    monkeypatch.setattr(check_site, "in_browser", lambda _: [])
    assert check_site.main(site) == 0
    (site / "index.html").write_text('<a href="gone.html">')
    assert check_site.main(site) == 1
    assert capsys.readouterr().out == "index.html links to gone.html, which does not exist\n"
