"""scripts/hellaswag.py:  scripts/run_tests.py test/scripts/test_hellaswag.py"""

import hellaswag
from preparing import PrepareCase, np
from teon_data import files
from testing import needs


class HellaSwagTest(PrepareCase):
    @needs("sentencepiece")
    def test_an_ending_is_encoded_together_with_its_context(self):
        import sentencepiece
        texts = ["the man is walking", "a dog in the park"] * 20
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_prefix=str(self.path("m")), vocab_size=40, model_type="bpe",
            remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2)
        model = sentencepiece.SentencePieceProcessor(model_file=str(self.path("m.model")))
        hellaswag.write_questions(str(self.path("out")), [("the man", ["is walking", "in the park"], 1)],
                                  lambda texts: model.encode(list(texts)))
        found = np.fromfile(self.path("out"), "<u2", offset=1024).tolist()
        self.assertEqual(found[:5], [65535, 2 * len(found), 0, 1, 2])
        cut = 6 + found[5]
        self.assertEqual(model.decode(found[6:cut]), "the man")
        for text in ("the man is walking", "the man in the park"):
            count = found[cut]
            self.assertEqual(found[6:6 + found[5]] + found[cut + 1:cut + 1 + count], model.encode(text))
            cut += 1 + count
        self.assertEqual(cut, len(found))

    def test_a_line_that_is_not_a_question_is_named(self):
        good = '{"ctx": "a", "endings": ["b", "c"], "label": 1}'
        for bad in ("", "{", "[]", '{"ctx": "a"}', good.replace("1", "2"), good.replace("1", "-1"),
                    good.replace("1", '"x"'), good.replace('"c"', "7"), good.replace('"c"', '""'),
                    good.replace('"c"', r'"\ud800"')):
            self.path("q.jsonl").write_text(f"{good}\n{bad}\n")
            with self.assertRaisesRegex(files.Failure, "q.jsonl: line 2"):
                list(hellaswag.read_questions(str(self.path("q.jsonl"))))

    def test_an_ending_that_changes_its_contexts_tokens_is_encoded_separately(self):
        def encode(texts):  # words, and "new york" in one
            return [text.replace("new york", "newyork").split() for text in texts]

        found = hellaswag.tokens_of("in new", ["york", "ideas"], encode)
        self.assertEqual(found, (["in", "new"], [["york"], ["ideas"]]))
