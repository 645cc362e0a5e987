#include "lockstep/base/error.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>

#include "lockstep/base/text.h"
#include "lockstep/base/throw_error.h"
#include "lockstep/base/vocabulary.h"

namespace lockstep {
namespace {

TEST(ErrorMessage, IsOneBlockWithAllParts) {
  const FailedPrecondition error(errors::kWrongContext, {.what = "reduce needs the cross-replica context",
                                                         .where = "reduce, on replica 1",
                                                         .seen = "called inside run",
                                                         .help = "call it outside of the function given to run"});
  EXPECT_STREQ(error.what(),
               "error[L201]: reduce needs the cross-replica context\n"
               "  where: reduce, on replica 1\n"
               "  seen:  called inside run\n"
               "  help:  call it outside of the function given to run");
}

TEST(ErrorMessage, LeavesOutEmptyParts) {
  EXPECT_STREQ(InvalidArgument(errors::kShape, {.what = "bad axis", .help = "use 0"}).what(),
               "error[L302]: bad axis\n  help:  use 0");
}

TEST(ErrorMessage, GrowsByThePlacesTheErrorPasses) {
  InvalidArgument error(errors::kDtype, {.what = "bool has no sum"});
  error.add_where("all_reduce");
  error.add_where("replica 1");
  EXPECT_EQ(error.text().where, "all_reduce, replica 1");
  EXPECT_STREQ(error.what(), "error[L303]: bool has no sum\n  where: all_reduce, replica 1");
}

TEST(ErrorType, SurvivesRaiseThroughTheBase) {
  const std::shared_ptr<const Error> kept =
      std::make_shared<DeadlineExceeded>(errors::kTimeout, ErrorText{.what = "replica 1 did not come"});
  try {
    kept->raise();
    FAIL() << "raise returned";
  } catch (const DeadlineExceeded& error) {
    EXPECT_EQ(error.code(), Code::DeadlineExceeded);
    EXPECT_EQ(error.number(), errors::kTimeout);
    EXPECT_STREQ(error.what(), kept->what());
  }
}

TEST(ErrorType, IsCaughtAsErrorAndAsStdException) {
  EXPECT_THROW(throw NotFound(errors::kInternal, {}), Error);
  EXPECT_THROW(throw NotFound(errors::kInternal, {}), std::exception);
}

template <class E>
class TypedErrors : public ::testing::Test {};

using AllErrorTypes =
    ::testing::Types<InvalidArgument, FailedPrecondition, OutOfRange, NotFound, AlreadyExists, Unavailable,
                     DeadlineExceeded, DataLoss, ResourceExhausted, Cancelled, Unimplemented, Internal>;
TYPED_TEST_SUITE(TypedErrors, AllErrorTypes);

TYPED_TEST(TypedErrors, RaiseKeepsTheType) {
  const TypeParam error(errors::kInternal, {.what = "x"});
  const Error& base = error;
  EXPECT_THROW(base.raise(), TypeParam);
}

TYPED_TEST(TypedErrors, CopiesWithoutThrowing) { EXPECT_TRUE(std::is_copy_constructible_v<TypeParam>); }

TYPED_TEST(TypedErrors, TravelToAnotherProcess) {
  const TypeParam sent(errors::kPeerLost, {.what = "w", .where = "", .seen = "s\nt", .help = "h"});
  try {
    throw_error(error_from(to_bytes(sent, 1000)));
    FAIL() << "throw_error returned";
  } catch (const TypeParam& error) {
    EXPECT_STREQ(error.what(), sent.what());
    EXPECT_EQ(error.number(), errors::kPeerLost);
  }
}

TEST(ErrorBytes, LoseWhatWasSeenFirst) {
  const Error error = error_from(to_bytes(NotFound(7, {.what = "w", .seen = std::string(100, 's'), .help = "h"}), 20));
  EXPECT_EQ(error.text().what + error.text().help, "wh");
  EXPECT_LT(error.text().seen.size(), 20U);
}

TEST(ErrorBytes, AZeroByteInATextStaysWhereItIs) {
  const std::string torn("a\0b", 3);
  const ErrorText text = error_from(to_bytes(NotFound(7, {.what = torn, .where = torn, .help = "h"}), 100)).text();
  EXPECT_EQ(text.what, "a?b");
  EXPECT_EQ(text.where, "a?b");
  EXPECT_EQ(text.help, "h");
  EXPECT_EQ(text.seen, "");
}

TEST(ErrorBytes, OfAnotherKindAreAnInternalError) {
  EXPECT_THROW(throw_error(error_from("")), Error);
  EXPECT_THROW(throw_error(error_from("99\0x")), Internal);
  EXPECT_EQ(error_from(std::string("-7\0\xff\0\0", 6)).number(), 0);
}

TEST(Codes, HaveTheUsualNames) {
  EXPECT_EQ(to_string(Code::InvalidArgument), "INVALID_ARGUMENT");
  EXPECT_EQ(to_string(Code::DeadlineExceeded), "DEADLINE_EXCEEDED");
  EXPECT_EQ(to_string(Code::Internal), "INTERNAL");
}

constexpr std::pair<std::string_view, std::string_view> kTestWords[] = {{"=run", "call"},
                                                                        {"in replicas", "here"},
                                                                        {"PerReplica", "PerDevice"},
                                                                        {"replicas", "towers"},
                                                                        {"replica", "tower"}};

TEST(Vocabulary, TakesTheLongerTextAndWholeTexts) {
  EXPECT_EQ(in_words(kTestWords, "run"), "call");
  EXPECT_EQ(in_words(kTestWords, "run in replicas of a replica"), "run here of a tower");
  EXPECT_EQ(in_words({}, "replica"), "replica");
  EXPECT_EQ(in_words(kTestWords, ""), "");
}

TEST(Vocabulary, LeavesNamesPathsAndQuotes) {
  EXPECT_EQ(in_words(kTestWords, "a PerReplica<int>, each replica's (of replicas)."),
            "a PerDevice<int>, each tower's (of towers).");
  for (const char* name :
       {"/job:a/replica:0", "data/replica/1.npy", "replica_3.npy", "my_replica", "Replicas2", "variable 'replica'",
        "out/best-replica.safetensors", "cannot open replica.txt", "encoder.replica.weight", "'my replica of replicas'",
        "the line \"a replica\"", "replica-0", "in replicas/x"})
    EXPECT_EQ(in_words(kTestWords, name), name);
  EXPECT_EQ(in_words(kTestWords, "/replica of a replica. It's a replica's"), "/replica of a tower. It's a tower's");
}

TEST(Vocabulary, LeavesWhatIsVerbatim) {
  const std::string text = str("a replica said: ", verbatim("bad replica 'row"), " on a replica");
  EXPECT_EQ(in_words(kTestWords, text), "a tower said: bad replica 'row on a tower");
  EXPECT_EQ(in_words_here(text), "a replica said: bad replica 'row on a replica");
  EXPECT_EQ(in_words(kTestWords, text.substr(0, 20)), "a tower said: bad");
}

TEST(Vocabulary, IsThatOfTheInnermostScopeWhereAnErrorIsMade) {
  const auto made = [] {
    return OutOfRange(errors::kShape, {.what = "a replica", .where = "run", .help = "in replicas"});
  };
  {
    const VocabularyScope towers(kTestWords);
    OutOfRange error = made();
    EXPECT_EQ(error.text().what + error.text().where + error.text().help, "a towercallhere");
    EXPECT_NE(std::string(error.what()).find("a tower"), std::string::npos);
    error.add_where("on replica 1");
    EXPECT_EQ(error.text().where, "call, on tower 1");
    EXPECT_EQ(NotFound(7, {.what = "the replica set is down"}).text().what,
              "the replica set is down");  // a program's own
    const Error sent = error_from(to_bytes(Internal(errors::kInternal, {.what = verbatim("a replica")}), 100));
    EXPECT_EQ(sent.text().what, "a replica");  // in the words of the API that made it
    const VocabularyScope main_words({});
    EXPECT_EQ(made().text().what, "a replica");
  }
  EXPECT_EQ(made().text().what, "a replica");
}

TEST(Vocabulary, OutsideOfScopesIsAskedFor) {
  set_vocabulary_outside_of_scopes([] { return Vocabulary(kTestWords); });
  EXPECT_EQ(in_words_here("a replica"), "a tower");
  set_vocabulary_outside_of_scopes(nullptr);
  EXPECT_EQ(in_words_here("a replica"), "a replica");
}

TEST(Explain, HasAParagraphForEachNumber) {
  using namespace errors;
  // clang-format off
  const int numbers[] = {
      kTimeout, kUnequalMeetings, kDifferentCollective, kPeerLost, kPeerMissing, kPortInUse, kTaskTaken, kDifferentClusters, kDifferentPrograms, kJobKey, kStranger, kPeerFailed,
      kClusterDescription, kSlurm, kChiefGone, kOldIncarnation, kWrongContext, kMixedStrategies, kConcurrentRun,
      kBadOption, kNotAvailable, kSeedInsideRun, kNoThreads, kStructure, kShape, kDtype, kDevice,
      kDestination, kNotReducible, kComponent, kVariableMode, kVariableAssign, kVariableName, kWrongModule,
      kOptimizer, kTornWeights, kNotFinite, kDrift, kSavedState, 521, kFile, kNoFiles, kCompression, kRecord, kExample,
      kFeature, kNpy, kCsv, kSafetensors, kPosition, kCardinality, kCacheFile, kSharding, kTooFewElements, kNoMoreData,
      kSignature, kInternal};
  // clang-format on
  for (const int number : numbers) {
    EXPECT_GT(explain(number).size(), 80u) << number;
    EXPECT_EQ(explain(number).back(), '.') << number;
  }
}

TEST(Explain, IsEmptyForAnUnknownNumber) {
  EXPECT_EQ(explain(0), "");
  EXPECT_EQ(explain(999), "");
}

}  // namespace
}  // namespace lockstep
