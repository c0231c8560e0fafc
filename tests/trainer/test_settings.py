"""The trainer's settings: a default that works for each, and an error that names the value for the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from leyden_trainer.checks import check, config_digest
from leyden_trainer.config import load
from leyden_trainer.samples import Aggregation, Level
from leyden_trainer.settings import LeydenSettings, SettingsInvalid


@pytest.fixture(scope="module")
def composed():
    """The configuration as it is shipped, with a model to train."""
    return load(["actor_rollout_ref.model.path=org/model"])


def settings(**leyden):
    return LeydenSettings.from_config({"leyden": {"run": "sort", **leyden}})


def with_values(config, values):
    changed = config.copy()
    for name, value in values.items():
        OmegaConf.update(changed, name, value, force_add=True)
    return changed


# Defaults.


def test_the_shipped_file_says_what_the_code_has_for_defaults(composed):
    shipped = LeydenSettings.from_config(composed)
    assert shipped == LeydenSettings(run="leyden", redis_url=os.environ.get("LEYDEN_REDIS_URL"))
    assert set(composed.leyden) == set(LeydenSettings.model_fields)
    check(composed, shipped)


def test_the_contracts_defaults_hold(composed):
    shipped = LeydenSettings.from_config(composed)
    assert shipped.rollout_timeout_seconds == 1800
    assert shipped.reward_fillna_value == 0.0
    assert shipped.max_ppo_update_times is None
    assert shipped.aggregation(1, 2) == Aggregation(Level.TRAJECTORY, 2048, 8192, None)
    assert composed.algorithm.enable_rollout_level_advantage is True
    assert composed.actor_rollout_ref.actor.policy_loss.loss_mode == "per_rollout_mean"


def test_composing_and_checking_import_neither_verl_nor_torch():
    script = (
        "import sys; from leyden_trainer.config import load; from leyden_trainer.checks import check\n"
        "from leyden_trainer.settings import LeydenSettings; import leyden_trainer.samples, leyden_trainer.decisions\n"
        "config = load(['actor_rollout_ref.model.path=org/model']); check(config, LeydenSettings.from_config(config))\n"
        "sys.exit(str([name for name in ('verl', 'torch', 'ray') if name in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ended.stderr.strip() == "[]"


def test_the_redis_url_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("LEYDEN_REDIS_URL", "redis://log:6379")
    assert LeydenSettings.from_config(load()).redis_url == "redis://log:6379"
    assert LeydenSettings.from_config(load(["leyden.redis_url=redis://other"])).redis_url == "redis://other"


def test_the_run_is_named_after_the_experiment_unless_it_has_a_name():
    assert LeydenSettings.from_config(load(["trainer.experiment_name=sort"])).run == "sort"
    assert LeydenSettings.from_config({"trainer": {"experiment_name": "sort"}}).run == "sort"
    assert settings().run == "sort"


# What can't be.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rollout_timout_seconds": 1}, "leyden.rollout_timout_seconds is not a setting; did you mean rollout_timeout"),
        ({"trace_aggregator": {"levle": "x"}}, "leyden.trace_aggregator.levle is not a setting; did you mean level"),
        ({"local": {"image": "x"}}, "leyden.local.image is not a setting; there are: agent_class, command"),
        ({"trace_aggregator": {"level": "turn"}}, "leyden.trace_aggregator.level: "),
        ({"trace_aggregator": {"trajectory_max_prompt_length": 0}}, "trajectory_max_prompt_length: "),
        ({"rollout_timeout_seconds": -1}, "leyden.rollout_timeout_seconds: "),
        ({"rollout_timeout_seconds": "soon"}, "leyden.rollout_timeout_seconds: "),
        ({"failed_rollouts": "keep"}, "leyden.failed_rollouts: "),
        ({"reward_fillna_value": float("nan")}, "leyden.reward_fillna_value: nan is not a finite number"),
        ({"reward_fillna_value": True}, "leyden.reward_fillna_value: True is not a finite number"),
        ({"max_ppo_update_times": 0}, "leyden.max_ppo_update_times: "),
        ({"run": "default"}, "leyden.run: 'default' is the run of clients that know no runs"),
        ({"run": "a b"}, "leyden.run: 'a b' is not a valid name"),
        ({"run": "r" * 121}, "leyden.run: "),
        ({"branch": "Not This"}, "leyden.branch: "),
        ({"extra_readers": ["trainer"]}, "leyden.extra_readers: "),
        ({"local": {"agent_class": "a.B", "command": "c"}}, "agent_class 'a.B' and command 'c' are both set"),
        ({"engines": {"kind": "external", "urls": ["http://e"]}}, "kind external also needs model, weights_dir"),
        ({"engines": {"urls": ["e:80"]}}, "'e:80' must begin with http:// or https://"),
        ({"hold_timeout_seconds": 0}, "leyden.hold_timeout_seconds: "),
    ],
)
def test_a_bad_setting_is_refused_by_its_name(given, said):
    with pytest.raises(SettingsInvalid) as refused:
        settings(**given)
    assert said in str(refused.value)


def test_every_bad_setting_is_named_at_once():
    with pytest.raises(SettingsInvalid) as refused:
        settings(nothing=1, rollout_tries=0, k8s={"path": "x"})
    assert len(refused.value.problems) == 3


def test_an_override_without_a_setting_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(SettingsInvalid, match="does not exist"):
        load(file=tmp_path / "none.yaml")
    for override, said in [
        ("leyden.rollout_timout_seconds", "; did you mean leyden.rollout_timeout_seconds?"),
        ("leydn.run", "; did you mean leyden?"),
        ("leyden.engines.kind.of", ": leyden.engines.kind holds a value, no settings"),
        ("leyden.zzz", ""),
    ]:
        with pytest.raises(SettingsInvalid) as refused:
            load([f"{override}=1"])
        assert str(refused.value) == f"{override} is not a setting{said}"


def test_a_file_of_ones_own_builds_on_the_defaults(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [leyden_trainer, _self_]\nleyden: {run: mine, rollout_tries: 5}\n")
    mine = LeydenSettings.from_config(load(["leyden.max_attempts=2"], file))
    assert (mine.run, mine.rollout_tries, mine.max_attempts, mine.rollout_timeout_seconds) == ("mine", 5, 2, 1800)


# The old name.


def test_agentlightning_is_read_as_the_old_name():
    config = load(
        [
            "actor_rollout_ref.model.path=org/model",
            "agentlightning.local.agent_class=pkg.mod.Agent",
            "+agentlightning.local.env_map.TASK=input.task",
            "agentlightning.trace_aggregator.level=transition",
            "agentlightning.reward_fillna_value=-1",
            "agentlightning.agl_base_url=http://localhost:8080",
            "agentlightning.rollout_timeout_seconds=60",
        ]
    )
    read = LeydenSettings.from_config(config)
    assert (read.local.agent_class, read.local.env_map) == ("pkg.mod.Agent", {"TASK": "input.task"})
    assert (read.trace_aggregator.level, read.reward_fillna_value) == (Level.TRANSITION, -1.0)
    assert read.rollout_config().timeout_seconds == 60
    check(config, read)


def test_a_whole_section_of_the_old_name_is_read_without_ours():
    old = {
        "agl_base_url": "http://localhost:8080",
        "agl_key": "",
        "hooks": None,
        "rollout_timeout_seconds": 1200,
        "local": {"agent_class": "a.B", "env_map": {}},
        "k8s": {"job_template_path": None},
        "reward_fillna_value": 0.0,
        "max_ppo_update_times": 4,
        "trace_aggregator": {"level": "trajectory", "trajectory_max_prompt_length": 100},
        "async_rollout": {"enabled": False, "async_train_batch_size": None},
    }
    read = LeydenSettings.from_config({"agentlightning": old, "trainer": {"experiment_name": "sort"}})
    assert (read.rollout_timeout_seconds, read.max_ppo_update_times) == (1200, 4)
    assert read.trace_aggregator.trajectory_max_prompt_length == 100


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ({"hoks": "x"}, "agentlightning.hoks is not a setting"),
        ({"local": {"command": "x"}}, "agentlightning.local.command is not a setting"),
        ({"hooks": "b.py"}, "agentlightning.hooks is 'b.py', but leyden.hooks is 'a.py'"),
        ({"trace_aggregator": {"level": "turn"}}, "trace_aggregator.level"),
    ],
)
def test_an_unknown_or_contradicting_old_name_is_refused(old, said):
    with pytest.raises(SettingsInvalid) as refused:
        LeydenSettings.from_config({"leyden": {"run": "sort", "hooks": "a.py"}, "agentlightning": old})
    assert said in str(refused.value)


# What verl's part must say.


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"trainer.save_freq": -1}, "trainer.save_freq is -1"),
        ({"trainer.save_freq": 0}, "trainer.save_freq is 0"),
        ({"trainer.use_v1": False}, "trainer.use_v1 is false"),
        ({"trainer.v1.trainer_mode": "separate_async"}, "trainer.v1.trainer_mode is 'separate_async'"),
        ({"algorithm.filter_groups.enable": True}, "algorithm.filter_groups.enable is true"),
        ({"trainer.v1.sampler.sync_refill_failed_groups": True}, "sync_refill_failed_groups is true"),
        ({"actor_rollout_ref.actor.checkpoint.async_save": True}, "async_save is true"),
        ({"algorithm.use_pf_ppo": True}, "algorithm.use_pf_ppo is true"),
        ({"algorithm.adv_estimator": "remax"}, "algorithm.adv_estimator is 'remax'"),
        ({"actor_rollout_ref.model.external_lib": None}, "external_lib loads leyden_trainer.loss"),
        ({"actor_rollout_ref.rollout.temperature": 0}, "rollout.temperature is 0"),
        ({"leyden.async_rollout.enabled": True}, "async_train_batch_size is None"),
        (
            {"leyden.async_rollout.enabled": True, "leyden.async_rollout.async_train_batch_size": 1024},
            "more than data.train_batch_size, 1024",
        ),
        ({"actor_rollout_ref.actor.megatron.router_replay.mode": "R3"}, "leyden.return_routed_experts"),
        ({"actor_rollout_ref.model.path": None}, "actor_rollout_ref.model.path is None"),
        ({"actor_rollout_ref.model.path": "/no/such"}, "actor_rollout_ref.model.path is '/no/such'"),
        ({"actor_rollout_ref.model.path": "~/no-such-model"}, "there is no such folder"),
        ({"actor_rollout_ref.model.path": "models/no/such"}, "there is no such folder"),
        ({"data.train_batch_size": 255}, "data.train_batch_size is 255: it must be at least"),
        ({"data.train_batch_size": "x"}, "data.train_batch_size is 'x': it must be a whole number above 0"),
        ({"actor_rollout_ref.rollout.n": 0}, "rollout.n is 0"),
        ({"trainer.nnodes": 3}, "a mini batch has 256 rows"),
        ({"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": None}, "ppo_micro_batch_size_per_gpu is None"),
        ({"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 64}, "32 for each of 8 ranks"),
        ({"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 5}, "which it does not divide"),
        ({"actor_rollout_ref.actor.ppo_micro_batch_size": 8}, "set actor_rollout_ref.actor.ppo_micro_batch_size_per_"),
    ],
)
def test_what_would_break_a_promise_is_refused(composed, values, said):
    config = with_values(composed, values)
    with pytest.raises(SettingsInvalid) as refused:
        check(config, LeydenSettings.from_config(config))
    assert said in str(refused.value)
    assert len(refused.value.problems) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"actor_rollout_ref.model.external_lib": ["mine", "leyden_trainer.loss"]},
        {"actor_rollout_ref.model.external_lib": None, "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla"},
        {"leyden.async_rollout": {"enabled": True, "async_train_batch_size": 1025}},
        {"actor_rollout_ref.model.path": "hdfs://cluster/models/a/b"},
        {"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 32},
        {
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": None,
        },
        {
            "actor_rollout_ref.actor.ppo_mini_batch_size": 6,
            "trainer.nnodes": 3,
            "actor_rollout_ref.rollout.n": 2,
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2,
        },
    ],
)
def test_what_keeps_every_promise_passes(composed, values):
    config = with_values(composed, values)
    check(config, LeydenSettings.from_config(config))


# What is made of settings.


def test_transitions_have_verls_limits():
    made = settings(trace_aggregator={"level": "transition"}, return_routed_experts=True).aggregation(7, 9)
    assert made == Aggregation(Level.TRANSITION, 7, 9, None, routed_experts_required=True)


def test_rollouts_carry_what_controllers_need(tmp_path):
    template = tmp_path / "job.yaml"
    template.write_text("kind: Job")
    given = settings(local={"command": ["run", "it"], "cwd": "/agent"}, k8s={"job_template_path": str(template)})
    config = given.rollout_config()
    assert config.local is not None
    assert config.k8s is not None
    assert (config.local.command, config.local.cwd) == (["run", "it"], "/agent")
    assert config.k8s.job_template == "kind: Job"
    assert settings().rollout_config().local is None
    with pytest.raises(SettingsInvalid, match=r"none\.yaml"):
        settings(k8s={"job_template_path": str(tmp_path / "none.yaml")}).rollout_config()


def test_a_trainers_run_holds_calls_and_has_its_reader():
    rules = settings(extra_readers=["archive"], engines={"model": "m"}).run_settings(train_temperature=0.9)
    assert (rules.when_paused, rules.readers, rules.model) == ("hold", ["trainer", "archive"], "m")
    assert (rules.train_temperature, rules.val_temperature) == (0.9, 0.7)


def test_another_branch_is_for_what_is_trained_not_for_where(composed, tmp_path):
    def digest(values):
        config = with_values(composed, values)
        return config_digest(config, LeydenSettings.from_config(config))

    template = tmp_path / "job.yaml"
    template.write_text("a")
    same = [
        {"leyden.redis_url": "redis://x"},
        {"leyden.drain_timeout_seconds": 1},
        {"leyden.engines.urls": ["http://x"]},
        {"trainer.total_training_steps": 7},
        {"trainer.logger": ["console", "file"]},
    ]
    other = [
        {"actor_rollout_ref.actor.optim.lr": 0.5},
        {"algorithm.adv_estimator": "rloo"},
        {"leyden.local.command": "x"},
        {"leyden.reward_fillna_value": 1.0},
        {"leyden.k8s.job_template_path": str(template)},
    ]
    begun = digest({})
    assert {digest(values) for values in same} == {begun}
    assert len({begun, *(digest(values) for values in other)}) == len(other) + 1
    before = digest(other[-1])
    template.write_text("b")
    assert digest(other[-1]) != before


MODEL_PATH = "actor_rollout_ref.model.path"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "no config.json and no tokenizer files"),
        (["model.safetensors", "tokenizer.json"], "no config.json"),
        (["config.json", "model.safetensors"], "no tokenizer files"),
    ],
)
def test_a_folder_that_holds_no_model_is_refused(composed, tmp_path, files, said):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(SettingsInvalid, match=said) as refused:
        check(with_values(composed, {MODEL_PATH: str(tmp_path)}), settings())
    assert MODEL_PATH in str(refused.value)
    assert len(refused.value.problems) == 1


def test_a_file_is_no_model(composed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").write_text("{}")
    for path in ("model", str(tmp_path / "model")):
        with pytest.raises(SettingsInvalid, match="that is a file"):
            check(with_values(composed, {MODEL_PATH: path}), settings())


@pytest.mark.parametrize(
    "tokenizer", ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "qwen.tiktoken"]
)
def test_a_folder_that_holds_a_model_passes(composed, tmp_path, tokenizer):
    for name in ("config.json", tokenizer):
        (tmp_path / name).write_text("{}")
    check(with_values(composed, {MODEL_PATH: str(tmp_path)}), settings())


def test_a_folder_need_not_hold_what_verl_is_told_to_find_elsewhere(composed, tmp_path):
    elsewhere = {f"actor_rollout_ref.model.{name}": "org/model" for name in ("hf_config_path", "tokenizer_path")}
    check(with_values(composed, {MODEL_PATH: str(tmp_path), **elsewhere}), settings())
