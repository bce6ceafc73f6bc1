"""scripts/hellaswag.py:  dev/run_tests.py test/scripts/test_hellaswag.py"""

import os

import hellaswag
from preparing import PrepareCase, np
from teon_data import files
from testing import needs
from tokenizer_kinds import sentencepiece_model


class HellaSwagTest(PrepareCase):
    @needs("sentencepiece")
    def test_an_ending_is_encoded_together_with_its_context(self):
        import sentencepiece
        model = sentencepiece.SentencePieceProcessor(
            model_proto=sentencepiece_model("bpe", remove_extra_whitespaces=False))
        hellaswag.write_questions(str(self.path("out")), [("the cat", ["sat 42", "return"], 1)],
                                  lambda texts: model.encode(list(texts)))
        found = np.fromfile(self.path("out"), "<u2", offset=1024).tolist()
        self.assertEqual(found[:5], [65535, 2 * len(found), 0, 1, 2])
        cut = 6 + found[5]
        self.assertEqual(model.decode(found[6:cut]), "the cat")
        for text in ("the cat sat 42", "the cat return"):
            count = found[cut]
            self.assertEqual(found[6:6 + found[5]] + found[cut + 1:cut + 1 + count], model.encode(text))
            cut += 1 + count
        self.assertEqual(cut, len(found))

    def test_a_line_that_is_not_a_question_is_named(self):
        good = '{"ctx": "a", "endings": ["b", "c"], "label": 1}'
        labels = ("2", "-1", '"x"', "1.9", "true", '"1.0"', '"\u0663"', "null", "9" * 5000, "[1]")
        endings = ("7", '""', r'"\ud800"')
        for bad in ("", "{", "[]", '{"ctx": "a"}', *(good.replace("1", label) for label in labels),
                    *(good.replace('"c"', ending) for ending in endings)):
            self.path("q.jsonl").write_text(f"{good}\n{bad}\n")
            with self.assertRaisesRegex(files.Failure, "q.jsonl: line 2"):
                list(hellaswag.read_questions(str(self.path("q.jsonl"))))
        for bad, fault in (("{", "line 2 is not JSON"), ('{"ctx": "a", "label": 1}', "line 2 has no endings"),
                           (good.replace('"c"', "7"), "line 2 ending 1 is not a text"),
                           (good.replace("1", "2"), "line 2 label 2 is not the number of an ending, from 0 to 1"),
                           (good.replace("1", "1.9"), "line 2 label 1.9 is not a whole number")):
            self.path("q.jsonl").write_text(f"{good}\n{bad}\n")
            with self.assertRaisesRegex(files.Failure, fault):
                list(hellaswag.read_questions(str(self.path("q.jsonl"))))
        os.mkfifo(self.path("pipe"))
        with self.assertRaisesRegex(files.Failure, "is a pipe"):
            next(hellaswag.read_questions(str(self.path("pipe"))))

    def test_an_ending_that_changes_its_contexts_tokens_is_encoded_separately(self):
        def encode(texts):  # words, and "new york" in one
            return [text.replace("new york", "newyork").split() for text in texts]

        found = hellaswag.tokens_of("in new", ["york", "ideas"], encode)
        self.assertEqual(found, (["in", "new"], [["york"], ["ideas"]]))
