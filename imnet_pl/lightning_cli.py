"""The verbs that run a Trainer, through LightningCLI."""

import inspect
import logging
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import SIGTERMException

from imnet_pl import run_parts
from imnet_pl.arguments import (
    YamlFile,
    add_evaluation_arguments,
    add_fit_arguments,
    add_predict_arguments,
    check_has_model,
    check_predict,
    value_of,
)
from imnet_pl.core.errors import UsageError, UserError
from imnet_pl.data.datamodule import ImageNetDataModule
from imnet_pl.messages import configure_logging, explain_parse_error
from imnet_pl.model.classifier import MIN_CLASSES_FOR_TOP5, ImageClassifier
from imnet_pl.tools import smoke
from imnet_pl.training import checkpointing, contract, guards, lost_rank, runs
from imnet_pl.training.checkpointing import find_last_checkpoint, require_space
from imnet_pl.training.leaving import Leave
from imnet_pl.training.predictions import PredictionWriter
from imnet_pl.training.stop_request import TERMINATED
from imnet_pl.training.strategies import check_devices, register_strategies

log = logging.getLogger(__name__)

EVALUATING_VERBS = ("validate", "test", "predict")


def run(verb: str, args: list[str]) -> int:
    """Run ``fit``, ``validate``, ``test`` or ``predict`` and return the exit status.

    Raises:
        UserError: The arguments, the data or a checkpoint are not usable.
    """
    configure_logging()
    register_strategies(configure_logging)
    try:
        if verb == "fit" and "--smoke" in args:
            args = [arg for arg in args if arg not in ("--smoke", "--resume")]
            return smoke.run_smoke(_build_only, args)
        ImageNetCLI([verb, *args])
    except MisconfigurationException as error:
        raise UserError(" ".join(str(error).split())) from error
    except Leave as leave:
        if leave.status:
            log.warning("%s", leave)
        return leave.status
    except SystemExit as stop:  # --help and --print_config
        if isinstance(stop.__context__, KeyboardInterrupt):  # before the first step
            raise KeyboardInterrupt from stop
        if isinstance(stop, SIGTERMException):
            return TERMINATED
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _build_only(verb: str, args: list[str]) -> "ImageNetCLI":
    return ImageNetCLI([verb, *args], build_only=True)


class Parser(LightningArgumentParser):
    """LightningCLI's parser, with one sentence for an error."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what the command line prints."""
        raise UsageError(message) from ex


class ImageNetCLI(LightningCLI):
    """Builds model, data and trainer from YAML and flags, and runs one verb.

    Precedence: the checkpoint that is evaluated, then ``--config`` files, then flags.
    """

    datamodule: ImageNetDataModule
    model: ImageClassifier

    def __init__(self, args: list[str], build_only: bool = False) -> None:
        self.build_only = build_only
        self._contract: dict[str, Any] | None = None
        self._ckpt_path: str | None = None
        self._is_newest = False
        self._run_dir: Path | None = None
        self._initial_weights: str | None = None
        self._argument_names: set[str] = set()
        super().__init__(
            ImageClassifier,
            ImageNetDataModule,
            save_config_callback=contract.RunRecord,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={
                "use_distributed_sampler": False,
                "enable_model_summary": False,
            },
            seed_everything_default=0,
            parser_class=Parser,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=args,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the verbs, and the arguments of Trainer's methods that are not for the command line."""
        hidden = {
            "model",
            "datamodule",
            "weights_only",
            "verbose",
            "return_predictions",
        }
        return {
            "fit": hidden | {"train_dataloaders", "val_dataloaders"},
            **{verb: hidden | {"dataloaders"} for verb in EVALUATING_VERBS},
        }

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what is neither model, data nor trainer."""
        parser.add_argument(
            "--name",
            type=str | None,
            help="Name of the run's folder in runs/; default: run.",
        )
        parser.add_function_arguments(checkpointing.build_checkpoints, "checkpoint")
        parser.add_function_arguments(guards.build_early_stopping, "early_stopping")
        parser.add_function_arguments(guards.build_guards, "guard")
        parser.add_function_arguments(lost_rank.build_rank_guards, "ranks")
        parser.link_arguments(
            "data.num_classes", "model.num_classes", apply_on="instantiate"
        )
        self._argument_names.update(parser.get_defaults().keys())

    def _prepare_subcommand_parser(
        self, klass: type, subcommand: str, **kwargs: Any
    ) -> LightningArgumentParser:
        """Add the arguments of one verb alone."""
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "predict":
            add_predict_arguments(parser)
        if subcommand in ("validate", "test"):
            add_evaluation_arguments(parser)
        if subcommand == "fit":
            add_fit_arguments(parser)
        self._argument_names.update(parser.get_defaults().keys())
        return parser

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse; what a checkpoint says comes before configs and flags."""
        assert isinstance(args, list)
        try:
            self._find_checkpoint(parser, args)
            if self._contract is None:
                self.config = parser.parse_args(args)
                return
            if args[0] in EVALUATING_VERBS:
                config = _evaluation_config(self._contract)
            else:
                config = contract.config_of_run(self._contract)
            with YamlFile(config) as file:
                self.config = parser.parse_args([args[0], "--config", file, *args[1:]])
            self.config[args[0]].ckpt_path = self._ckpt_path
        except UnicodeDecodeError as error:
            raise UsageError(
                f"a --config file is not UTF-8 text (byte {error.start}); save it as UTF-8."
            ) from error
        except UsageError as error:
            raise UsageError(
                explain_parse_error(str(error), self._argument_names)
            ) from error

    def _find_checkpoint(
        self, parser: LightningArgumentParser, args: list[str]
    ) -> None:
        """Read the checkpoint that the command line asks for, if it does."""
        if args[0] == "fit":  # its configs may say it too
            config = parser.parse_args(args).fit
            given, is_resume = config.ckpt_path, config.resume
            name = config.name
            root = (
                config.trainer.get("default_root_dir")
                if isinstance(config.trainer, Namespace)
                else None
            )
        else:
            given, is_resume = value_of(args, "--ckpt_path"), False
            root = value_of(args, "--trainer.default_root_dir")
            name = value_of(args, "--name")
        folder = Path(root or runs.DEFAULT_ROOT)
        found: Path | None = None
        if given is not None:
            found = runs.find_checkpoint(given, folder, name)
        elif is_resume:
            found = runs.newest_of_run(folder, name)
            self._is_newest = found is not None
        if found is not None:
            self._ckpt_path = str(found)
            self._contract = contract.read_contract(self._ckpt_path)
            self._run_dir = runs.run_dir_of(found)

    def _parse_ckpt_path(self) -> None:
        """Do not merge a checkpoint's hyper-parameters, as Lightning does: they would override flags."""

    def before_instantiate_classes(self) -> None:
        """Fill in what depends on other arguments, so that the resolved config holds it."""
        verb = self.config["subcommand"]
        config = self.config[verb]
        for group in ("trainer", "model", "data"):
            if not isinstance(config[group], Namespace):
                raise UsageError(
                    f"{group}={config[group]!r} must be a mapping of arguments, such as {group}: {{name: value}}."
                )
        if verb == "predict":
            config.data.predict_input = config.input or config.data.predict_input
            check_predict(config.data.predict_input, config.ckpt_path)
        if self._contract is not None:
            contract.check_same_arch(self._contract, self._ckpt_path, config.model.arch)
        elif verb in EVALUATING_VERBS:
            check_has_model(verb, config.ckpt_path, config.model.weights)
        if verb == "fit":
            self._prepare_fit(config)
        _settle_defaults(config)

    def _prepare_fit(self, config: Namespace) -> None:
        """Settle what a resumed run needs to know; leave if it has nothing to do."""
        config.name = config.name or runs.DEFAULT_NAME
        if config.smoke:
            raise UsageError(
                "smoke stands in a config: give --smoke on the command line."
            )
        config.resume = False  # a config.yaml must not resume by itself
        if self._contract is None:
            return
        if self._is_newest:
            progress, keep = self._contract["progress"], config.checkpoint.keep
            checkpointing.finish_save(Path(str(self._ckpt_path)), progress, keep)
        trainer = config.trainer
        if done := contract.describe_done(
            self._contract["progress"],
            trainer.max_epochs,
            trainer.max_steps,
            config.early_stopping.patience,
        ):
            log.info("nothing to do: %s.", done)
            raise SystemExit(0)
        contract.say_how_it_goes_on(self._contract, self._ckpt_path, trainer.max_epochs)
        # The checkpoint brings its own weights; the config keeps the name of the first ones.
        self._initial_weights, config.model.weights = config.model.weights, None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Return the trainer with this program's logger and callbacks, where the user set none."""
        if self.subcommand == "fit":
            self.config["fit"].model.weights = (
                self.config["fit"].model.weights or self._initial_weights
            )
        verb = self.config_init["subcommand"]
        config = self.config_init[verb]
        given = config.trainer.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        if self.subcommand == "predict":
            given.append(PredictionWriter(config.output, config.top_k))
        if config.trainer.barebones:
            # Lightning refuses a config's value beside barebones.
            kwargs["log_every_n_steps"] = None
        else:
            kwargs |= run_parts.build(config, verb, given, self._continued())
        check_devices(config.trainer.accelerator, config.trainer.devices)
        try:
            trainer = super().instantiate_trainer(callbacks=given, **kwargs)
        except UserError:
            raise
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise UserError(f"trainer: {' '.join(str(error).split())}") from error
        lost_rank.limit_waiting(trainer, config.ranks.timeout_sec)
        return trainer

    def _continued(self) -> run_parts.Continued | None:
        if self._run_dir is None or self._contract is None:
            return None
        return run_parts.Continued(self._run_dir, self._contract["progress"]["steps"])

    def _check_checkpoint(self) -> None:
        if self._contract is not None:
            assert self._ckpt_path is not None
            arch = self.model.hparams["arch"]
            contract.check_same_model(
                self._contract, self._ckpt_path, arch, self.datamodule.classes
            )

    def _check_scores(self) -> None:
        """Raise for a score that this run does not have, rather than after its first epoch."""
        config = self.config_init["fit"]
        for name in ("checkpoint", "early_stopping"):
            few = self.model.num_classes < MIN_CLASSES_FOR_TOP5
            if config[name].monitor == "val/top5" and few:
                raise UserError(
                    f"{name}.monitor='val/top5' needs {MIN_CLASSES_FOR_TOP5} classes, the data has "
                    f"{self.model.num_classes}; use val/top1."
                )

    def _run_subcommand(self, subcommand: str) -> None:
        if self.build_only:
            return
        try:
            super()._run_subcommand(subcommand)
        except RuntimeError as error:
            lost_rank.raise_if_lost(self.trainer, error)
            raise

    def before_fit(self) -> None:
        """Check what can be known before training."""
        self._check_checkpoint()
        self._check_scores()
        millions = sum(parameter.numel() for parameter in self.model.parameters()) / 1e6
        arch, num_classes = self.model.hparams["arch"], self.model.num_classes
        log.info("%s: %.1f M parameters, %d classes.", arch, millions, num_classes)
        guards.warn_if_gpu_unused()
        self._require_space()

    def _require_space(self) -> None:
        config, folder = self.config_init["fit"], self.trainer.log_dir
        if find_last_checkpoint(self.trainer) is None or folder is None:
            return
        require_space(
            self.model,
            Path(folder),
            config.checkpoint.keep,
            self.trainer.max_epochs,
        )

    def after_fit(self) -> None:
        """Say where the best checkpoint is."""
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.monitor:
                score, path = callback.best_model_score, callback.best_model_path
                value = (
                    "" if score is None else f" {score:.4f}"
                )  # not known of spawned ranks
                if path:
                    log.info("best %s%s: %s", callback.monitor, value, path)

    def before_validate(self) -> None:
        """Check that the checkpoint is of this model."""
        self._check_checkpoint()

    def before_test(self) -> None:
        """Check that the checkpoint is of this model."""
        self._check_checkpoint()

    def before_predict(self) -> None:
        """Check that the checkpoint is of this model."""
        self._check_checkpoint()

    def validate(self, **kwargs: Any) -> None:
        """Evaluate on the validation split."""
        self.trainer.validate(verbose=False, **kwargs)

    def test(self, **kwargs: Any) -> None:
        """Evaluate on the test split."""
        self.trainer.test(verbose=False, **kwargs)

    def predict(self, **kwargs: Any) -> None:
        """Write class and probability of pictures."""
        self.trainer.predict(return_predictions=False, **kwargs)


def _settle_defaults(config: Namespace) -> None:
    """Replace values that depend on the place or on other values."""
    if config.trainer.deterministic:
        config.trainer.benchmark = False
    for name in ("root", "image_root"):
        if (folder := config.data[name]) is not None:
            config.data[name] = str(Path(folder).expanduser().absolute())
    if config.data.seed is None:
        config.data.seed = int(config.seed_everything)


def _evaluation_config(there: dict[str, Any]) -> dict[str, Any]:
    """Return the config that a checkpoint brings to its evaluation."""
    known = {
        group: set(inspect.signature(cls).parameters)
        for group, cls in (("model", ImageClassifier), ("data", ImageNetDataModule))
    }
    return contract.config_of_contract(there, known)
