import os

import pytest
from omegaconf import DictConfig, OmegaConf

from leyden_trainer.config import load
from leyden_trainer.platforms import cpu_settings
from leyden_trainer.settings import SettingsInvalid


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    for name in (*cpu_settings.ENVIRONMENT, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return load(["trainer.device=cpu", "trainer.n_gpus_per_node=2"])


def test_the_device_is_all_that_has_to_be_said(config: DictConfig):
    cpu_settings.prepare(config)

    assert config.actor_rollout_ref.actor.strategy == "fsdp2"
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "sdpa"
    assert config.actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype == "fp32"
    assert config.ray_kwargs.ray_init.num_gpus == 2
    assert config.ray_kwargs.ray_init.num_cpus >= 8
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == 1


def test_every_process_of_ray_learns_the_platform(config: DictConfig):
    cpu_settings.prepare(config)

    given = OmegaConf.to_container(config.ray_kwargs.ray_init.runtime_env.env_vars)
    assert isinstance(given, dict)
    assert given.items() >= cpu_settings.ENVIRONMENT.items()
    assert os.environ["VERL_PLATFORM"] == "cpu"


def test_what_a_user_has_chosen_stays(config: DictConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    OmegaConf.update(config, "ray_kwargs.ray_init.num_cpus", 40)
    OmegaConf.update(config, "transfer_queue.backend.SimpleStorage.num_data_storage_units", 4)

    cpu_settings.prepare(config)

    assert config.ray_kwargs.ray_init.num_cpus == 40
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == 4
    assert config.ray_kwargs.ray_init.runtime_env.env_vars.OMP_NUM_THREADS == "3"


def test_an_empty_list_of_devices_does_not_hide_rays_logical_ones(config: DictConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    cpu_settings.prepare(config)

    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize("setting", [{"algorithm.adv_estimator": "gae"}, {"critic.enable": True}])
def test_a_critic_is_refused(config: DictConfig, setting: dict[str, object]):
    for name, value in setting.items():
        OmegaConf.update(config, name, value)

    with pytest.raises(SettingsInvalid, match="can't train a critic"):
        cpu_settings.prepare(config)
