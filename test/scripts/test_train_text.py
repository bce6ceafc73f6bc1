"""train_text.py, from a text to a page:  dev/run_tests.py test/scripts/test_train_text.py"""

import re

import train_text
from common import page
from testing import BUILD, ROOT, Case, needs


class TextTest(Case):
    def test_a_text_that_is_too_small_is_refused_with_the_least_that_works(self):
        (self.folder / "short.txt").write_text("a b c " * 500)
        error = self.error_here("train_text.py", self.folder / "short.txt")
        self.assertIn("3,000 bytes of text are too few; from 20,000 on", error)

    def test_what_is_not_there_is_refused(self):
        (self.folder / "empty").mkdir()
        for name in ("none.txt", "empty"):
            self.assertIn("no such file, and no folder with .txt, .md, .jsonl",
                          self.error_here("train_text.py", self.folder / name))

    def test_a_folder_is_read_with_its_folders(self):
        (self.folder / "notes" / "old").mkdir(parents=True)
        for name in ("a.txt", "old/b.md", "c.png"):
            (self.folder / "notes" / name).write_text("text")
        files, words = train_text.sources_of(str(self.folder / "notes"))
        self.assertEqual(sorted(path[-5:] for path in files), ["/b.md", "a.txt"])
        self.assertEqual([word[-4:] for word in words], [".txt", "*.md"])

    def test_the_shape_shrinks_until_it_cannot(self):
        shapes, shape = [], (4, 256, 4, 128)
        while shape:
            shapes.append(shape)
            shape = train_text.smaller(shape)
        self.assertEqual(shapes, [(4, 256, 4, 128), (2, 128, 2, 128), (2, 64, 2, 128)])

    @needs("numpy", "tokenizers", "pyarrow", "tqdm")
    def test_from_a_text_to_a_page(self):
        if not (BUILD / "train_llama").exists() or not (ROOT / "train_llama").exists():
            self.skipTest("needs ./train_llama")
        (self.folder / "play.txt").write_bytes((ROOT / "experiments" / "shakespeare.txt").read_bytes()[:24_000])
        done = self.run_script("train_text.py", self.folder / "play.txt", "--minutes", "0.1", "--out",
                               self.folder / "out", expect=None)
        # Whether so short a training beats the trigram model depends on the machine.
        self.assertEqual(done.returncode, int("not better than the trigram model" in done.stderr), done.stderr)
        for word in ("vocabulary", "model", "dropout", "steps", "keep"):
            self.assertRegex(done.stdout, rf"(?m)^{word} +\S")
        self.assertEqual(len(re.findall(r"(?m)^\$ ", done.stdout)), 3)
        self.assertRegex(done.stdout, r"trigram model with backoff +\d\.\d{3} +\d\.\d{3}")
        self.assertLessEqual(max(map(len, re.findall(r"(?m)^[ 0-9.]{8}[|+].*$", done.stdout))), 80)
        text = (self.folder / "out" / "report.html").read_text()
        self.assertIn("<polyline", text)
        self.assertIn("--keep-best on", text)
        self.assertNotRegex(text, r"(src|href)=\"(?!data:)|https?://")
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()),
                         ["data", "model", "report.html"])


class PageTest(Case):
    def test_names_cannot_end_their_element(self):
        page.write(str(self.folder / "a.html"), "<b>", [("<i>", page.table([("<u>", 1)], ("<s>", "x"))),
                                                        ("c", page.curves_as_svg({"<p>": [(1, 2), (2, 1)]}, "x", "y"))])
        text = (self.folder / "a.html").read_text()
        for word in ("<b>", "<i>", "<u>", "<s>", "<p>"):
            self.assertNotIn(word, text)

    def test_ticks_are_round_and_inside(self):
        self.assertEqual(page.ticks(0, 10), [0, 2, 4, 6, 8, 10])
        self.assertEqual([round(x, 9) for x in page.ticks(2.31, 2.79)], [2.4, 2.5, 2.6, 2.7])

    def test_a_curve_in_the_terminal_has_its_points(self):
        curves = {"one": [(0, 3), (10, 1)], "two": [(0, 1), (10, 3)]}
        lines = page.curves_as_text(curves, "steps", width=29, height=5)
        # The upper and the lower edge are 5% of the range away, less than half a row of five.
        self.assertEqual([line[9:].strip() for line in (lines[0], lines[4])], [f"o{' ' * 18}t", f"t{' ' * 18}o"])
        self.assertEqual(lines[-1].strip(), "0 to 10 steps; o: one, t: two")
