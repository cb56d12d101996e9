"""docs/conformance.md: every line of the checklists once, every named test there, and every one of them run.

The ids of the lines are facts about the ancestors' tests and stand here, since the checklists themselves are no part
of the project. That a named test ran is seen at the end of a whole tier, by `fix_conformance.RanCheck`; that it sees
this is tried out here, on small runs of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fix_conformance import APART, DOCUMENT, ROOT, Line, defined_in, markers_of, not_run, read_lines
from fix_effort import few_of

INDEX = {
    "": [*(f"S{number}" for number in range(1, 16)), "C5"],
    "VLSNBucketTest": "Basic OutOfOrderPuts GetNonNullWithHoles RemoveFromTail TruncateAfterFileOffset",
    "MergeTest": "Merge SingleRBMerge MultiRBMerge RBInRecoveryLogMerge",
    "VLSNIndexTest": "NonFlushedGets FlushedGets OutOfOrderPuts TruncateTailOutOfOrder DatabasePruning "
    "NonContiguousBucketSmallHoles NonContiguousBucketLargeHoles NonContiguousGhostBucket SR20726GTESearch",
    "VLSNIndexTruncateTest": "HeadTruncateManyFiles HeadTruncateSeveralFiles HeadTruncateoutOfOrderMappings "
    "TailTruncate",
    "SyncupWithGapsTest": "ReplicaHasOneGapNetworkRestore ReplicaHasMultipleGapsNetworkRestore ReplicaHasGap "
    "FeederHasGap",
    "VLSNAwaitConsistencyTest": "LoggingFailure",
    "VLSNCleanerTest": "Basic",
    "VLSNConsistencyTest": "VLSNConsistency CheckpointerAhead",
    "FeederReaderTest": "ForwardScans Wait BackwardScans FindSyncableentries NonFlushedFetch SwitchFetch",
    "ReplicaSyncupReaderTest": "RepAndNonRepCommits MultipleCkpts",
    "FeederWriteQueueTest": "DataInWriteQueue",
    "FeederFilterTest": "BlockFilter NoOpFilter FilterWithStatistics",
    "ProtocolTest": "Basic Version WritePreviousVersionOlderConvert WritePreviousVersionCompatibleCopy",
    "RollbackTest": "DbOpsRollback TxnEndBeforeMatchpoint TxnEndAfterMatchpoint TxnStraddleMatchpoint "
    "RemoveDatabaseAfterRollback RemoveSomeDatabasesAfterRollback ReplicasFlip RollingBackDbBackupAPI "
    "RollBackInvalidateDbBackup",
    "RollbackToMatchpointTest": "BasicRollback CustomBtreeComparator Dups",
    "ReplayRecoveryTest": "RBRecoveryOneTxn RBRecoveryMultiTxn RBRecoveryPostMatchpointTxn ResurrectionOneTxn "
    "ResurrectionMultiTxn ResurrectionPostMatchpointTxn",
    "RollbackTrackerTest": "GoodNestedLogs GoodLogs GoodCkptStart BadIntersection BadCommitInRollbackPeriod",
    "CommitTokenTest": "Basic CommitTokenFailures",
    "GroupCommitTest": "Basic GroupCommitOff",
    # Whole classes of which the checklist gives the topic only.
    "*": "VLSNCacheTest ProtocolTest.NodeGroupInfo PostLogCommitTest ExceptionTest RepAutoCommitTest "
    "LockPreemptionTest HardRecoveryTest DTVLSNTest CBVLSNTest MinRetainedVLSNsTest "
    "CommitPointConsistencyPolicyTest MasterChangeTest SecondaryNodeTest VLSNFreezeLatchTest ArbiterTest "
    "NetworkBackupTest MasterTransferTest MinorityTransferTest PrimaryNodeTest NetworkPartitionHealingTest "
    "NetworkRestoreTest NetworkRestoreNoMasterTest OneNodeRestoreTest InterruptedNetworkRestoreTest "
    "GroupShutdownTest ReplicaOutputThreadTest ReplicaTimeoutTest FeederRecordBatchTest UpdateJEVersionTest "
    "UpdateNodeAddressTest MasterBounceTest RepNodeTest ReplicaMasterStateTransitionsTest DbCacheTest "
    "ElectionsTest AcceptorTest RankingProposerTest ReplicatedTransactionTest",
}
"""Part C and the defects of conformance/vlsn-index.md: the methods of each class without their `test`."""

TUNGSTEN = {
    "": [f"B7-{number}" for number in range(1, 25)],
    "LogRecordTest": "ReplicationEvents ChecksumFailure ChecksumTypeFailure ChecksumValueMismatch RotationEvents",
    "LogFileTest": "OpenClose ReadEmpty1 ReadWrite FileTruncationAndRepair CheckSum ConcurrentReadWrite",
    "LogFileExtendedTest": "ConcurrentReadWriteMulti",
    "WriteLockTest": "BasicLocking Idempotency",
    "DiskLogTest": "LogPreparation LogReadonlyNonExistent LogWritableNonExistent ReadWriteBasic "
    "OpenWithChecksumFailure OpenWithBadChecksumType OneWriter ReadonlyNoWrite SeqnoOrdering FragnoOrdering "
    "NonexistingSeqno NonexistingLogFile BlockingNext ReadTimeout SeekLast SeekGoodNonZeroFirst SeekNotArrivedEvent "
    "SeekBadNonZeroFirst SeekFilteredEvent SeekFilteredEvent2 SeekFinalFilteredEvent SeekAfterFinalFilteredEvent "
    "LogFileRead FirstRead LogNonZeroStart LogDirectoryCreation LogReadback LogReadbackWithFiltering "
    "StutteringLogReadback FindNonExistent MultipleLogs MultipleLogsFiltered TruncateEndFile DeleteUp DeleteDown "
    "FragmentsAndRotation SimpleFragmentCleanup ComplexFragmentCleanup EmptyFileCleanup MultipleLogsBackwardScan "
    "CommitVisibility CommitMultiReader ImplicitCommit ReadFiltering",
    "DiskLogCompabilityTest": "Version_2_2_1 Version_3_1_0",
    "DiskLogExtendedTest": "ConcurrentAccess VaryingFsync LogRetention MissingLogFile ZeroLengthTail "
    "ZeroLengthMiddleFile",
    "EventsCacheTest": "ZeroLengthCache CacheSemantics",
    "THLParallelReadQueueTest": "Init Post ControlEvents AutoSyncEvents Predicates OutOfOrderControlEvent "
    "OutOfOrderPredicate PredicatesPlusCtrl FragmentsAndControlEvents",
    "THLParallelQueueBasicTest": "PipelineStartStop SingleChannel MultipleChannels MultiChannelBasic "
    "MultiChannelErrorHandling MultiChannelPartialCommit SingleChannelPerniciousLag MultiChannelPerniciousLag "
    "SinglePartitionWatch LaggingChannels MultiChannelLag",
    "THLParallelQueueIntervalTest": "QueueBlockingAssumptions BlockOnLongInterval ExtremelyNegativeInterval "
    "MaxOfflineIntervalUnBlocking MaxOfflineIntervalNoBlocks IntervalLargeGap IntervalLargeGapMulti "
    "IntervalBackwardsTime IntervalBackwardsTimeMulti IntervalVariableTime",
    "THLParallelQueueSerializationTest": "SerializeUnknown SerializeEmptyString SerializeNullShard Serialize2Unknowns "
    "SerializeBracketedUnknown SerializeMultipleUnknown SparseMultiChannelStratification MultiChannelStratification "
    "SimpleSerializationCount SerializationAndWaits",
    "TestTHL2": "BasicService FilteredEvents THL2Chaining InstanceConnections MultiThlServerConnect SeqnoPropagation "
    "FragmentedEvents THLExtractWaiting",
    "ParallelQueueStoreTest": "SinglePartition MultiPartitions MultStop MultWatchSync NonCriticalPartitioning "
    "SimpleCriticalPartitioning SyncIntervals SyncDistribution LoadBalancingPartitioner",
    "ParallelStageTest": "BasicParallelStage RoundRobinParallelStore",
    "*": "TestAtomicCounter TestAtomicIntervalGuard TestEventWatcher PipelineFilterTest PipelineProgressTest "
    "EventMetadataFilterTest RowChangeMetadataTest TestStatementData FileDataSourceTest",
    # One class of twenty tests, of which the checklist gives the topics.
    "PipelineTest.": "build start-stop services seqno-tracking skip run-to-seqno run-to-event-id shutdown-after-event "
    "shutdown-at-seqno wait-seqno two-stages fragments block-commit-sizes forced-commit filtering-does-not-commit "
    "commit-on-fragments unsafe-events service-change block-commit-interval ten-million",
}
"""The defects B7 and part D of conformance/tungsten.md."""

TOKUMX = {"": [f"B{number}" for number in range(1, 37)]}
"""Part B of conformance/tokumx.md."""

MESSAGE_STORE = {
    "": [
        *(f"MS-{number}" for number in range(1, 67)),
        *(f"MS-A7-{number}" for number in range(1, 16)),
        *(f"MS-I{number}" for number in range(1, 13)),
        *(f"MS-R{number}" for number in range(1, 10)),
    ],
    # The rows of the crash matrix.
    "MS-B-": "SQL-create-queue SQL-delete-queue expunge-Dequeue Message-Start-single Message-Start-of-k-chunks Chunk-i "
    "Chunk-k Enqueue-first Enqueue-second Dequeue-others-left Dequeue-last Message-Delete base-move Tx-Start "
    "Enqueue/Dequeue-in-open Prepare Commit-local Commit-2PC Rollback-open Rollback-prepared "
    "Message-Deletes-after-Commit Transaction-Delete txn-log-base-move recovery's-own-writes "
    "two-in-one-group-commit container-creation checkpoint-of-memory unknown-type-or-CRC torn-forms",
    # Tests, and topics of those that say the same.
    "MS-": "store.py.testDurableExchange store.py.testDurableQueues store.py.testDurableBindings "
    "store.py.testDtxRecoverPrepared persistence.py.test_delete_queue_after_publish "
    "persistence.py.test_ack_message_from_deleted_queue persistence.py.test_queue_deletion dtx.py.simple "
    "dtx.py.select_required dtx.py.start_already_known dtx.py.forget_xid_on_completion dtx.py.start_join "
    "dtx.py.start_join_and_resume dtx.py.end dtx.py.invalid_commit_one_phase dtx.py.not_ended "
    "dtx.py.implicit_end dtx.py.timeout dtx.py.recover dtx.py.unknown tx.py SimpleTest.Queue "
    "SimpleTest.Message SimpleTest.Exchange OrderingTest TransactionalTest.Swap TransactionalTest.MultiQueue "
    "TransactionalTest.LockedRecordTest TwoPhaseCommitTest client_persistence.exchanges "
    "client_persistence.lvq client_persistence.message_reject client_persistence.route "
    "client_persistence.AlternateExchange client_persistence.Redelivered client_persistence.linearstore "
    "persistence.py.phases resize.py jrnl.basic jrnl.transient jrnl.overflow jrnl.txn jrnl.one-txn-both "
    "jrnl.read jrnl.maps jrnl.headers jrnl.files jrnl.jtt TxBufferTest DtxWorkRecordTest test_store.cpp "
    "tx-test-soak",
}
"""Parts A to C of conformance/message-store.md."""

LINES = read_lines(DOCUMENT.read_text())


def ids_of(checklist: Mapping[str, Sequence[str]]) -> list[str]:
    found: list[str] = []
    for owner, names in checklist.items():
        listed = names.split() if isinstance(names, str) else names
        if owner in ("", "*"):
            found += listed
        elif owner.endswith((".", "-")):
            found += [owner + name for name in listed]
        else:
            found += [f"{owner}.test{name}" for name in listed]
    return found


# --- the page --------------------------------------------------------------------------------------------------------


def test_every_line_of_the_checklists_is_there_once() -> None:
    wanted = ids_of(INDEX) + ids_of(TUNGSTEN) + ids_of(TOKUMX) + ids_of(MESSAGE_STORE)
    assert len(wanted) == len(set(wanted)) == 526
    found = Counter(line.id for line in LINES)
    assert [one for one, count in found.items() if count > 1] == []
    assert set(wanted) - set(found) == set()
    assert set(found) - set(wanted) == set()


def test_every_line_is_proven_set_apart_or_open() -> None:
    """Nothing else may stand in the last column: a line that says neither is a line that nobody looked at."""
    unclear = [
        line.id
        for line in LINES
        if not (line.is_open or line.proof.startswith(APART) or (line.tests and line.proof.startswith("`tests/")))
    ]
    assert unclear == []
    assert [line.id for line in LINES if len(line.fact) < 7] == []
    reasonless = [line.id for line in LINES if line.proof.startswith(APART) and len(line.proof) < len(APART) + 12]
    assert reasonless == []


def test_whatever_is_open_in_the_log_has_its_reason() -> None:
    """Channels and stages may have lines that nobody has come to; the index and the log may not."""
    bare = [line.id for line in LINES if line.proof == "open" and "pipeline" not in line.section]
    assert bare == []


@pytest.mark.long
def test_every_named_test_exists() -> None:
    missing = [(line.id, test) for line in LINES for test in line.tests if markers_of(test, ROOT) is None]
    assert missing == []
    quoted = [(line.id, one) for line in LINES for one in re.findall(r"`(tests/[^`]*)`", line.proof)]
    assert [pair for pair in quoted if pair[1] not in next(one for one in LINES if one.id == pair[0]).tests] == []


def test_no_proof_waits_for_a_soak() -> None:
    """What a line rests on runs at every push; a slow test may stand beside it."""
    slow = [
        line.id
        for line in LINES
        if line.tests and all("slow" in (markers_of(test, ROOT) or frozenset()) for test in line.tests)
    ]
    assert slow == []


# --- a run of a tier -------------------------------------------------------------------------------------------------

PAGE = """\
## Part
| line | fact | proof |
|---|---|---|
| A1 | first | `tests/test_a.py::test_one` <br> `tests/test_a.py::test_cases[2]` |
| A2 | second | `tests/test_a.py::test_served` |
| A3 | third | open |
| A4 | fourth | does not apply: for a reason, see `tests/test_a.py::test_two` |
"""

TESTS = """\
import pytest

def test_one(): {one}
def test_two(): pass
@pytest.mark.parametrize("n", [1, {case}])
def test_cases(n): pass
@pytest.mark.integration
def test_served(): pass
"""

CONFTEST = """\
import sys
from pathlib import Path
sys.path.insert(0, {path!r})
from fix_conformance import RanCheck

def pytest_configure(config):
    config.addinivalue_line("markers", "integration: a server")
    here = Path(__file__).parents[1]
    config.pluginmanager.register(RanCheck(document=here / "page.md", root=here))
"""


def run_small(path: Path, *options: str, one: str = "pass", case: int = 2) -> tuple[int, str]:
    """Run three tests of which a page names some, in a process of their own."""
    (path / "tests").mkdir()
    (path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib\n")
    (path / "page.md").write_text(PAGE)
    (path / "tests" / "conftest.py").write_text(CONFTEST.format(path=str(ROOT / "tests")))
    (path / "tests" / "test_a.py").write_text(TESTS.format(one=one, case=case))
    (path / "tests" / "test_b.py").write_text("def test_other(): pass\n")
    # A folder with a conftest of its own: pytest then looks every plugin up in a set.
    (path / "tests" / "folder").mkdir()
    (path / "tests" / "folder" / "conftest.py").touch()
    (path / "tests" / "folder" / "test_c.py").write_text("def test_deeper(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *options]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout


TOLD = "page.md names tests that did not run"


@pytest.mark.long
@pytest.mark.parametrize("workers", few_of([[], ["-n", "2"]]))
def test_a_tier_that_ran_them_all_passes(workers: list[str], tmp_path: Path) -> None:
    code, out = run_small(tmp_path, "-m", "not integration", *workers)
    assert code == 0 and TOLD not in out, out


@pytest.mark.long
@pytest.mark.parametrize("workers", few_of([[], ["-n", "2"]]))
def test_a_tier_that_left_one_out_fails_and_names_it(workers: list[str], tmp_path: Path) -> None:
    """One is skipped, the case of another is gone: each counts as not run, and no third one does."""
    code, out = run_small(tmp_path, "-m", "not integration", "tests", *workers, one="pytest.skip()", case=3)
    assert code == 1
    told = out.split(TOLD)[1]
    assert "tests/test_a.py::test_one, named for A1" in told
    assert "tests/test_a.py::test_cases[2], named for A1" in told
    assert "test_served" not in told and "test_two" not in told


@pytest.mark.long
@pytest.mark.parametrize("options", few_of([["-k", "two"], ["tests/test_b.py"], ["-x"]]))
def test_a_part_of_a_tier_proves_nothing_and_fails_nothing(options: list[str], tmp_path: Path) -> None:
    code, out = run_small(tmp_path, "-m", "not integration", *options, one="pytest.skip()")
    assert code == 0 and TOLD not in out, out


@pytest.mark.long
def test_a_test_that_fails_did_run(tmp_path: Path) -> None:
    code, out = run_small(tmp_path, "-m", "not integration", one="assert False")
    assert code == 1 and TOLD not in out, out


# --- the decisions, alone --------------------------------------------------------------------------------------------


def test_markers_are_read_from_the_file_and_from_each_test(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        "import pytest\npytestmark = [pytest.mark.spark, pytest.mark.timeout(60)]\n"
        "def test_a(): ...\n@pytest.mark.slow\n@pytest.mark.parametrize('x', [1])\ndef test_b(x): ...\n"
        "def other(): ...\n"
    )
    found = defined_in(file)
    assert set(found) == {"test_a", "test_b"}
    assert found["test_a"] >= {"spark"} and found["test_b"] >= {"spark", "slow"} and "slow" not in found["test_a"]
    assert markers_of("tests/test_nowhere.py::test_a", tmp_path) is None


def test_lines_are_read_with_their_sections() -> None:
    lines = read_lines(PAGE)
    assert [(line.section, line.id) for line in lines] == [("Part", f"A{number}") for number in range(1, 5)]
    assert lines[0].tests == ("tests/test_a.py::test_one", "tests/test_a.py::test_cases[2]")
    assert [line.is_open for line in lines] == [False, False, True, False]
    assert not Line(section="", id="", fact="", proof="opened").is_open


def test_a_name_without_a_case_is_any_of_its_cases() -> None:
    line = Line(section="", id="X", fact="", proof="`tests/test_types.py::test_a_dates_text`")
    assert not_run([line], {"tests/test_types.py::test_a_dates_text[1]"}, expression="", root=ROOT) == []
    assert not_run([line], {"tests/test_types.py::test_a_floats_text"}, expression="", root=ROOT) == [
        "tests/test_types.py::test_a_dates_text, named for X"
    ]
