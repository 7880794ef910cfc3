"""The page in a real browser: drawing, sliders, pointing, files, and that nothing leaves the machine."""

import base64
import io
import json
import re
import shutil
import time
from collections.abc import Iterator

import PIL.Image
import pytest

from tests.explore.conftest import serving, small
from torchscn.explore import Explorer
from torchscn.explore.server import ExploreServer

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the page is tested with playwright, which is not installed"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="the page is tested in chromium, which is not installed"),
]
sync_api.expect.set_options(timeout=15_000)
expect = sync_api.expect

THREE = [(32, 25), (42, 17), (58, 18), (66, 28), (60, 40), (48, 47), (62, 53), (69, 66), (62, 80), (46, 85), (32, 77)]
SEVEN = [(30, 22), (70, 22), (58, 45), (48, 80)]


@pytest.fixture(scope="module")
def digits(mnist) -> Iterator[ExploreServer]:
    with serving(Explorer(mnist, name="scn4-mnist", layer=2)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser) -> Iterator[object]:
    """Opens pages; afterwards, none of them has complained or asked for anything elsewhere."""
    contexts, complaints, addresses, homes = [], [], [], []

    def open_page(running: ExploreServer, **options):
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        contexts.append(context)
        homes.append(running.url)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(running.url)
        expect(page.locator("#layer option")).not_to_have_count(0)
        return page

    open_page.complaints = complaints
    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert addresses
    assert all(url.startswith((*homes, "data:")) for url in addresses)


def draw(page, points: list[tuple[int, int]]) -> None:
    """One stroke, points in percent of the square."""
    box = page.locator("#pad").bounding_box()
    spots = [(box["x"] + x / 100 * box["width"], box["y"] + y / 100 * box["height"]) for x, y in points]
    page.mouse.move(*spots[0])
    page.mouse.down()
    for spot in spots[1:]:
        page.mouse.move(*spot, steps=4)
    page.mouse.up()


def point_at(page, view: str, x: float, y: float, click: bool = False) -> None:
    """Hover over a place of a picture, from 0 to 1."""
    target = page.locator(view)
    target.scroll_into_view_if_needed()
    box = target.bounding_box()
    spot = (box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.mouse.move(*spot)
    if click:
        page.mouse.click(*spot)


def wait_until(page, condition: str, argument: object = None) -> None:
    """Wait for a condition, a function in the page's own words (its policy forbids what playwright does to wait)."""
    deadline = time.monotonic() + 15
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(30)


def settled(page) -> None:
    """Wait for the answer to the last question."""
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")


def active(page) -> float:
    return float(page.locator("#active").inner_text().split()[0])


def slide(page, name: str, share: float) -> None:
    """Drag a slider to a share of its length."""
    slider = page.locator(name)
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 12, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 10 + share * (box["width"] - 20), box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()


def picture(color: str, size: tuple[int, int] = (50, 40)) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", size, color).save(file, "PNG")
    return file.getvalue()


def drop(page, name: str, content: bytes, extra: int = 0) -> None:
    """What a browser does when a file is dropped on the page; it may have extra zeros at its end."""
    page.evaluate(
        """([name, text, extra]) => {
            const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
            const files = new DataTransfer();
            files.items.add(new File([bytes, new Uint8Array(extra)], name));
            for (const kind of ["dragenter", "dragover", "drop"])
                document.getElementById("pad").dispatchEvent(
                    new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
        }""",
        [name, base64.b64encode(content).decode(), extra],
    )


def test_digits_drawn_with_the_mouse_are_recognised(digits, visit):
    page = visit(digits)
    expect(page.locator("#answer")).to_have_text("none yet")
    draw(page, THREE)
    expect(page.locator("#answer")).to_have_text(re.compile(r"^3 \d+\.\d %$"))
    assert float(page.locator("#shares .best .percent").inner_text().split()[0]) > 80
    assert page.locator("#shares li").count() == 10
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#answer")).to_have_text("none yet")
    expect(page.locator("#maps")).to_be_hidden()
    draw(page, SEVEN)
    expect(page.locator("#answer")).to_have_text(re.compile("^7 "))
    expect(page.locator("#maps")).to_be_visible()


def test_the_penalty_thins_out_the_codes_and_changes_the_answer(digits, visit):
    page = visit(digits)
    draw(page, THREE)
    expect(page.locator("#answer")).to_have_text(re.compile("^3 "))
    settled(page)
    before, maps = active(page), page.evaluate("maps.toDataURL()")
    expect(page.locator("#lam1-reset")).to_be_disabled()
    slide(page, "#lam1", 0.7)
    settled(page)
    assert active(page) < before / 4
    assert page.evaluate("maps.toDataURL()") != maps
    slide(page, "#lam1", 1)
    expect(page.locator("#active")).to_have_text("0 of 64")
    expect(page.locator("#place")).to_contain_text("none of 64 atoms in use")
    expect(page.locator("#answer")).not_to_have_text(re.compile("^3 "))
    page.locator("#lam1-reset").click()
    expect(page.locator("#answer")).to_have_text(re.compile("^3 "))
    expect(page.locator("#active")).to_have_text(f"{before:g} of 64")


def test_noise_and_tolerance_can_be_turned(digits, visit):
    page = visit(digits)
    draw(page, THREE)
    expect(page.locator("#answer")).to_have_text(re.compile("^3 "))
    settled(page)
    seen = page.evaluate("Array.from(answer.seen)")
    slide(page, "#noise", 0.5)
    wait_until(page, "before => answer.seen.some((level, i) => level !== before[i])", seen)
    settled(page)
    noisy = page.evaluate("Array.from(answer.seen)")
    page.locator("#new-noise").click()
    wait_until(page, "before => answer.seen.some((level, i) => level !== before[i])", noisy)
    settled(page)
    iterations = float(page.locator("#iterations").inner_text())
    slide(page, "#tol", 0)
    expect(page.locator("#tol-value")).to_have_text("1.0e-6")
    wait_until(page, "before => answer.iterations > before", iterations)


def test_pointing_lists_the_atoms_in_use(digits, visit):
    page = visit(digits)
    draw(page, THREE)
    settled(page)
    point_at(page, "#seen", 0.5, 0.5)
    expect(page.locator("#place")).to_contain_text("Row 15, column 15")
    tiles = page.locator("#atoms li")
    expect(tiles).not_to_have_count(0)
    listed = page.evaluate(
        """() => atomsAt({row: 14, column: 14}).slice(0, MOST_ATOMS)
            .map(([atom, code]) => `#${atom} ${number(code)}`)"""
    )
    assert [" ".join(text.split()) for text in tiles.all_inner_texts()] == listed
    expect(page.locator("#atoms canvas:not([data-shown=''])")).to_have_count(len(listed))  # their pictures have come
    point_at(page, "#count", 0.1, 0.9, click=True)
    expect(page.locator("#place")).to_contain_text("Row 26, column 3, held")
    point_at(page, "#rebuilt", 0.9, 0.1)
    expect(page.locator("#place")).to_contain_text("Row 26, column 3, held")
    point_at(page, "#maps", 0.01, 0.01, click=True)
    expect(page.locator("#place")).to_contain_text("The map is that of atom 0")


def test_everything_but_the_pen_works_from_the_keyboard(digits, visit):
    page = visit(digits)
    drop(page, "grey.png", picture("white"))
    expect(page.locator("#maps")).to_be_visible()
    for name, key, text in (("#seen", "ArrowRight", "Row 15, column 16"), ("#maps", "ArrowUp", "Row 14, column 16")):
        page.locator(name).focus()
        page.keyboard.press(key)
        expect(page.locator("#place")).to_contain_text(text)
    for _ in range(40):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#place")).to_contain_text("Row 14, column 1,")
    page.locator("#lam1").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#lam1-reset")).to_be_enabled()
    page.keyboard.press("End")
    expect(page.locator("#active")).to_have_text("0 of 64")
    page.locator("#layer").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator("#maps-title")).to_contain_text("16 atoms")
    page.locator("#down").press("Enter")
    expect(page.locator("#maps-title")).to_contain_text("64 atoms")


def test_every_control_has_a_name(digits, visit):
    page = visit(digits)
    draw(page, THREE)
    expect(page.locator("#maps")).to_be_visible()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, canvas[role], [tabindex]")]
            .filter(one => !/[a-z]/i.test(one.textContent) && !one.ariaLabel && !one.labels?.length)
            .filter(one => !one.getAttribute("aria-labelledby"))
            .map(one => one.outerHTML)"""
    )
    assert nameless == []


def test_files_are_dropped_chosen_and_inverted(digits, visit):
    page = visit(digits)
    drop(page, "black.png", picture("black"))
    expect(page.locator("#maps")).to_be_visible()
    assert set(page.evaluate("Array.from(answer.seen)")) == {0}
    page.get_by_role("button", name="Invert").click()
    wait_until(page, "() => answer.seen.every(level => level === 255)")
    file = {"name": "grey.png", "mimeType": "image/png", "buffer": picture("#808080")}
    page.locator("#file").set_input_files(file)
    wait_until(page, "() => answer.seen.every(level => level === 128)")


def test_a_bad_file_is_refused_with_a_message(digits, visit):
    page = visit(digits)
    drop(page, "bad.png", b"not an image")
    expect(page.get_by_role("alert")).to_contain_text("This cannot be read as an image")
    # The browser itself writes a line about every answer that is a refusal.
    assert len(visit.complaints) == 1
    assert "400" in visit.complaints.pop()
    page.get_by_role("button", name="Close this message").click()
    expect(page.get_by_role("alert")).to_be_hidden()
    drop(page, "huge.png", picture("white"), extra=16 * 2**20)
    expect(page.get_by_role("alert")).to_contain_text("This file is larger than 16 MB.")
    drop(page, "good.png", picture("white"))
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.locator("#maps")).to_be_visible()


def test_never_more_than_one_question_at_a_time_and_the_last_one_wins(digits, visit):
    page = visit(digits)
    drop(page, "grey.png", picture("#808080"))
    expect(page.locator("#maps")).to_be_visible()
    page.evaluate(
        """() => {
            window.most = window.running = window.sent = 0;
            const send = window.fetch;
            window.fetch = async (...all) => {
                if (all[0] !== "/look") return send(...all);
                sent++; running++; most = Math.max(most, running);
                try { return await send(...all); } finally { running--; }
            };
            const slider = document.getElementById("noise");
            for (let step = 1; step <= 100; step++) {
                slider.value = step;
                slider.dispatchEvent(new Event("input"));
            }
        }"""
    )
    wait_until(page, "() => asked.noise === 0.5 && running === 0")
    assert page.evaluate("[most, sent]") == [1, 2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(digits, visit, scheme):
    page = visit(digits, viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True, color_scheme=scheme)
    drop(page, "grey.png", picture("#808080"))
    expect(page.locator("#maps")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    page.locator("#up").tap()
    expect(page.locator("#maps-title")).to_contain_text("16 atoms")
    page.locator("#seen").tap(position={"x": 20, "y": 30})
    expect(page.locator("#place")).to_contain_text(re.compile(r"Row \d, column \d:"))
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    expect(page.locator("#brief")).to_be_visible()
    assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(19, 22, 26)") == (scheme == "dark")


def test_touch_draws(digits, visit):
    page = visit(digits, viewport={"width": 375, "height": 667}, has_touch=True, is_mobile=True)
    page.locator("#pad").tap()
    expect(page.locator("#answer")).to_have_text(re.compile(r"^\d \d+\.\d %$"))


def test_examples_say_whether_the_answer_is_right(browser, visit):
    with serving(Explorer(small(), name="digits")) as running:
        page = visit(running)
        expect(page.locator("#examples button")).to_have_count(10)
        expect(page.locator("#answer")).to_have_text(re.compile("correct|but this is: 0"))
        page.get_by_role("button", name="Test image: 4").click()
        expect(page.locator("#answer")).to_have_text(re.compile("correct|but this is: 4"))
        assert page.get_by_role("button", name="Test image: 4").get_attribute("aria-pressed") == "true"
        page.close()  # before the server, which may be in the middle of an answer


def test_a_convolutional_twin_has_channels_and_nothing_to_rebuild(browser, visit):
    with serving(Explorer(small("cnn1", channels=3, data="none"), layer=3)) as running:
        page = visit(running)
        drop(page, "red.png", picture("red"))
        expect(page.get_by_text("A convolution has no inverse of its own")).to_be_visible()
        for hidden in ("#lam1", "#tol", "#rebuilt", "#residual", "#invert"):
            expect(page.locator(hidden)).to_be_hidden()
        expect(page.locator("#maps-title")).to_contain_text("channels")
        expect(page.locator("#place")).to_contain_text("channels in use")
        page.close()  # before the server, which may be in the middle of an answer


def test_names_of_classes_are_text(browser, visit):
    trained = small()
    trained.model.classes = tuple(f"<img src=x onerror=alert({i})>" for i in range(10))
    with serving(Explorer(trained, name="<b>bold</b>")) as running:
        page = visit(running)
        draw(page, THREE)
        expect(page.locator("#answer")).to_contain_text("<img src=x")
        expect(page.locator("h1")).to_have_text("<b>bold</b>")
        assert page.locator("img").count() == 0
        page.close()  # before the server, which may be in the middle of an answer


def test_when_the_program_has_ended_the_page_says_so(browser, visit):
    with serving(Explorer(small(), name="digits")) as running:
        page = visit(running)
        expect(page.locator("#maps")).to_be_visible()
        page.route("**/look", lambda route: route.abort())
        page.locator("#up").click()
        expect(page.get_by_role("alert")).to_contain_text("The program does not answer any more")
        page.unroute("**/look")
        page.locator("#up").click()
        expect(page.get_by_role("alert")).to_be_hidden()
        page.close()  # before the server, which may be in the middle of an answer
    assert any("ERR_FAILED" in visit.complaints.pop() for _ in list(visit.complaints))


def test_what_the_page_sends_is_what_is_answered(digits, visit):
    page = visit(digits)
    with page.expect_request("**/look") as sent:
        draw(page, THREE)
    question = json.loads(sent.value.post_data)
    assert set(question) == {"layer", "lam1", "tol", "noise", "seed", "drawing"}
    assert len(base64.b64decode(question["drawing"])) == 280 * 280
