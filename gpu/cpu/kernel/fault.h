// Mistakes that the kernel's text can be told to make, to prove that a test notices them. What depends on timing comes
// with a window, in which others go on.
#ifndef DOORBELL_CPU_FAULT_H
#define DOORBELL_CPU_FAULT_H

#define DOORBELL_FAULTS(fault)                                                                                 \
  fault(AdmitsOutOfTurn)   /* descriptors are admitted as they come, not in turn */                            \
  fault(ReservesBlindly)   /* completion slots are reserved although the host has not released them */         \
  fault(PostsBeforeTokens) /* the completion of a short DECODE is posted before its tokens */                  \
  fault(TearsHalves)       /* the word with the phase is written before the rest of its half */                \
  fault(LeavesEarly)       /* a rollout leaves the running table before its completion has a slot */           \
  fault(StaysInTable)      /* a rollout never leaves the running table */                                      \
  fault(KeepsStop)         /* a place stays stopped for the rollout that gets it next */                       \
  fault(WrapsPlaces)       /* the ring of free places is not a power of two */                                 \
  fault(PassesFences)      /* a fence waits for nothing */                                                     \
  fault(AcknowledgesEarly) /* the end of a session is acknowledged before it has come */                       \
  fault(CountsStallsLate)  /* the time spent waiting for completion slots is told only when it is over */      \
  fault(ScoutsOutOfTurn)   /* the scout executes at once what others have not come to the end before */        \
  fault(ScoutsBlindly)     /* the scout executes what a fetch warp has claimed */                              \
  fault(LeavesBadSlots)    /* the scout takes a slot that does not verify for one that is not published */     \
  fault(ScoresAll)         /* a checkpoint is scored by all tokens, not by those since the last one */         \
  fault(ClosesEarly)       /* whom a completion ends is marked before it has its slot */                       \
  fault(OvertakesGroup)    /* a STOP of a group waits for nothing that was admitted to it */                   \
  fault(TakesStale)        /* a DECODE runs on a prefix of another version */                                  \
  fault(SwapsSlots)        /* a version is loaded in the place of the newest */                                \
  fault(LoadsBusySlot)     /* a slot is loaded while a DECODE of its version runs */                           \
  fault(TellsEarly)        /* an event is told before its completion is posted */                              \
  fault(LosesDrops)        /* what finds no room in the event ring is not counted */                           \
  fault(KeepsEventPhase)   /* events carry the same phase on each pass */                                      \
  fault(TakesLastQuarter)  /* LIFE events take what is left for faults */                                      \
  fault(PublishesAlone)    /* a publish is told to nobody */                                                   \
  fault(OverlooksOthers)   /* a publish asks its own queue pair alone whether the slot is in use */            \
  fault(LeavesFunction)    /* a session that ends leaves its function while its rollouts still run */          \
  fault(HoldsNobody)       /* what is admitted while somebody publishes is admitted under the old versions */  \
  fault(AbortsLate)        /* an ABORT ends what runs alone */                                                 \
  fault(SharesNothing)     /* one queue pair may fill the work queue */                                        \
  fault(CountsUnordered)   /* completions are counted, and a fence passed, in no order with them */            \
  fault(LooksAhead)        /* lanes of the scout read a slot that another of them was told of */               \
  fault(KeepsVersions)     /* the versions of the policy are as before the turn */                             \
  fault(StartsRetired)     /* what has been told to end before it starts adds tokens */                        \
  fault(RelaxesReleases)   /* no release orders anything */                                                    \
  fault(ClaimsApart)       /* queue pairs claim slots of their event ring without knowing of each other */     \
  fault(TellsTogether)     /* two warps tell of one ring's events at a time */                                 \
  fault(HoldsScout)        /* no mistake: the scout's lane that decides is told last */                        \
  fault(StallsWorker)      /* no mistake: one worker looks at its ticket only when the next comes to its slot */  \
  fault(ChangesTable)      /* engine 1: one entry of a table is another */                                     \
  fault(DropsBin)          /* engine 1: of an attention the lower bin is left out */                           \
  fault(DropsLowestBin)    /* engine 1: of a vocabulary the lowest of three bins is left out */                \
  fault(ScalesAhead)       /* engine 1: a score is taken by the scale of the position behind its own */        \
  fault(LosesRow)          /* engine 1: the last row of a stretch of weights is the one before */              \
  fault(SwapsBlocks)       /* engine 1: two entries of a block table are swapped */                            \
  fault(CopiesShort)       /* engine 1: the copy of a partial block lacks its last position */                 \
  fault(TakesOldPrefix)    /* engine 1: a partial block is what the own one held, not its source */            \
  fault(SwitchesInStep)    /* engine 1: weights are the other version's from the second step on */             \
  fault(LoadsInPlace)      /* engine 1: a model is loaded in the place of the version that it is to replace */ \
  fault(TakesUnfinished)   /* engine 1: a model is published before all of its stretches are there */          \
  fault(ForgetsDigest)     /* engine 1: a rollout that goes on begins its digest anew */                       \
  fault(RepeatsStep)       /* engine 1: a rollout that goes on repeats its last position */                    \
  fault(SharesLast)        /* engine 1: layers without keys and values read those of the last that has them */ \
  fault(SeesBefore)        /* engine 1: a window begins one position early */                                  \
  fault(CutsMore)          /* engine 1: a gate that is cut is shut one unit above its bound */                 \
  fault(SwapsStreams)      /* engine 1: the coefficients of the streams are taken by columns, not by rows */   \
  fault(AddsToFirst)       /* engine 1: the embedding by layer is added to the first stream too */             \
  fault(KeepsOneMore)      /* engine 1: a truncated draw keeps tokens that are a little less likely, too */    \
  fault(ScoresEarly)       /* engine 1: the log-probability of a given token is written one place before */ \
  fault(SwapsColumns)      /* engine 1: two positions of a chunk of a prompt have each other's shifts */       \
  fault(TakesLongChunk)    /* engine 1: a chunk of a prompt goes on behind a token that is none */             \
  fault(MeetsNobody)       /* engine 1: ranks of a team do not wait for each other */                          \
  fault(HelpsElsewhere)    /* engine 1: a team that helps with a prompt takes the chunk behind its own */        \
  fault(SkipsRows)         /* engine 1: a rank leaves its last rows out */                                     \
  fault(SwapsTile)         /* engine 1: two tiles of a matrix are swapped */                                   \
  fault(JoinsLate)         /* engine 1: a rollout that joins others has its column a step late */              \
  fault(KeepsOldPages)     /* engine 1: keys and values are kept although their generation was raised */       \
  fault(OverlooksWriters)  /* engine 1: what a descriptor writes is overlooked in what is kept */              \
  fault(TakesPartPages)    /* engine 1: a block that is kept in part is taken for whole */                     \
  fault(FreesUnderReader)  /* engine 1: a page gets another block while a team reads it */                     \
  fault(SharesPages)       /* engine 1: what is kept of one function is another's too */                       \
  fault(KeepsFunction)     /* engine 1: what is kept of a function outlives its last queue pair */              \
  fault(KeepsUnstarted)    /* engine 1: a PREFILL opens its group before there is a place for it to run */     \
  fault(ReadsTailEarly)    /* the completion queue's tail is read before it is known that nothing runs */

namespace cpu {

enum class Fault : unsigned {
  kNone,
#define DOORBELL_FAULT_NAME(name) name,
  DOORBELL_FAULTS(DOORBELL_FAULT_NAME)
#undef DOORBELL_FAULT_NAME
};

}  // namespace cpu

#define DOORBELL_FAULT(name) cpu::has(cpu::Fault::name)
#define DOORBELL_WINDOW(name) cpu::window(cpu::Fault::name)
#define DOORBELL_YIELD() cpu::yields()
#define DOORBELL_SOON() cpu::progress()

#endif
