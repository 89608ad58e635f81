"""Writes tasks of our own in AppWorld's form, so that its real class can be played without its data: python FILE ROOT.

It runs in AppWorld's environment.  Each task asks for a product; nothing in it is of AppWorld's data.
"""

import json
import os
import sys
from pathlib import Path

PERSON = {"first_name": "Ida", "last_name": "Roe", "email": "ida@mail.example", "phone_number": "5550001234"}
EVALUATION = """
import json

def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    (task,) = models.end.supervisor.Task.all()
    with test("the answer is right"):
        test.answer(json.loads(task.answer), ground_truth_answer)
"""
TRUTH = {
    "metadata": {
        "difficulty": 1, "mode": "minimal", "num_apps": 1, "num_apis": 1, "num_api_calls": 1,
        "num_solution_code_lines": 1,
    },
    "public_data": {}, "private_data": {}, "required_apps": ["supervisor"],
    "test_data": [{"requirement": "the answer is right", "label": "no_op_fail"}],
}  # fmt: skip


def write(file: Path, value: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, default=str))


def main(data: Path) -> None:
    from appworld.apps import get_all_apps
    from appworld.apps.model_lib import CachedDBHandler
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.collections.models import ModelCollection
    from appworld.common.constants import DB_VERSION

    apps = get_all_apps(skip_admin=True)
    docs = ApiDocCollection.build(load_apps=tuple(apps))
    for app in apps:
        told = {name: {**doc, "canary_string": ""} for name, doc in docs[app].items()}
        write(data / "api_docs/standard" / f"{app}.json", told)
    for number, name in enumerate(["train", "dev", "test_normal"]):
        ids = [f"own{number}_{place}" for place in (1, 2, 3)]
        for factor, task in enumerate(ids, start=2):
            question, folder = f"What is {factor} times {number + 7}?", data / "tasks" / task
            (folder / "dbs").mkdir(parents=True)
            CachedDBHandler.reset()
            models = ModelCollection.load(
                to_db_home_path=":memory:base", from_db_home_path=str(folder / "dbs"), load_apps=[*apps, "admin"],
                create_db=True,
            )  # fmt: skip
            models.admin.MainUser(**PERSON, birthday="1990-01-01").save()
            models.supervisor.Supervisor(**PERSON, birthday="1990-01-01").save()
            models.supervisor.Task(supervisor_id=1, instruction=question).save()
            models.save(str(folder / "dbs"), app_names=[*apps, "admin"], delete_if_exists=True)
            spec = {"instruction": question, "supervisor": PERSON, "datetime": "2023-05-18T12:00:00"}
            write(folder / "specs.json", {**spec, "db_version": DB_VERSION})
            for part, value in {**TRUTH, "answer": factor * (number + 7)}.items():
                write(folder / "ground_truth" / f"{part}.json", value)
            (folder / "ground_truth/evaluation.py").write_text(EVALUATION)
        (data / "datasets").mkdir(exist_ok=True)
        (data / "datasets" / f"{name}.txt").write_text("\n".join(ids))


if __name__ == "__main__":
    os.environ["APPWORLD_ROOT"] = sys.argv[1]
    main(Path(sys.argv[1]) / "data")
