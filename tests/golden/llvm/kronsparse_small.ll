; Kronecker-sparse 2 blocks 2x2 in vectors of 8 f32

define void @km(ptr %pointers, ptr %integers, ptr %numbers, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %p1 = getelementptr i64, ptr %integers, i64 0
  %v2 = load i64, ptr %p1, align 8
  %p3 = getelementptr i64, ptr %integers, i64 1
  %v4 = load i64, ptr %p3, align 8
  %p5 = getelementptr i64, ptr %integers, i64 2
  %v6 = load i64, ptr %p5, align 8
  %p7 = getelementptr i64, ptr %integers, i64 3
  %v8 = load i64, ptr %p7, align 8
  %p9 = getelementptr ptr, ptr %pointers, i64 0
  %v10 = load ptr, ptr %p9, align 8
  %p11 = getelementptr ptr, ptr %pointers, i64 1
  %v12 = load ptr, ptr %p11, align 8
  %p13 = getelementptr ptr, ptr %pointers, i64 2
  %v14 = load ptr, ptr %p13, align 8
  %p15 = getelementptr ptr, ptr %pointers, i64 3
  %v16 = load ptr, ptr %p15, align 8
  %v17 = add nsw i64 %v2, 1
  %v18 = sdiv i64 %v17, 2
  br label %head19
head19:
  %i22 = phi i64 [ %begin, %entry ], [ %v60, %done43 ]
  %v23 = icmp slt i64 %i22, %end
  br i1 %v23, label %body20, label %done21
body20:
  %v24 = srem i64 %i22, %v18
  %v25 = sdiv i64 %i22, %v18
  %v26 = mul nsw i64 %v25, 16
  %v27 = mul nsw i64 %v24, 2
  %v28 = sub nsw i64 %v2, 2
  %v29 = call i64 @llvm.smin.i64(i64 %v27, i64 %v28)
  %v30 = mul nsw i64 %v29, 4
  %p31 = getelementptr float, ptr %v10, i64 %v30
  %v32 = load <8 x float>, ptr %p31, align 4
  %v33 = shufflevector <8 x float> %v32, <8 x float> poison, <8 x i32> <i32 0, i32 0, i32 1, i32 1, i32 4, i32 4, i32 5, i32 5>
  %v34 = shufflevector <8 x float> %v32, <8 x float> poison, <8 x i32> <i32 2, i32 2, i32 3, i32 3, i32 6, i32 6, i32 7, i32 7>
  %v35 = mul nsw i64 %v29, 2
  %p36 = getelementptr float, ptr %v16, i64 %v35
  %v37 = load <4 x float>, ptr %p36, align 4
  %v38 = shufflevector <4 x float> %v37, <4 x float> poison, <8 x i32> <i32 0, i32 0, i32 1, i32 1, i32 2, i32 2, i32 3, i32 3>
  %v39 = add nsw i64 %v26, 16
  %v40 = call i64 @llvm.smin.i64(i64 %v4, i64 %v39)
  br label %head41
head41:
  %i44 = phi i64 [ %v26, %body20 ], [ %v59, %body42 ]
  %v45 = icmp slt i64 %i44, %v40
  br i1 %v45, label %body42, label %done43
body42:
  %v46 = mul nsw i64 %i44, %v6
  %p47 = getelementptr float, ptr %v12, i64 %v46
  %v48 = mul nsw i64 %v29, 4
  %p49 = getelementptr float, ptr %p47, i64 %v48
  %v50 = load <8 x float>, ptr %p49, align 4
  %v51 = shufflevector <8 x float> %v50, <8 x float> poison, <8 x i32> <i32 0, i32 1, i32 0, i32 1, i32 4, i32 5, i32 4, i32 5>
  %v52 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v51, <8 x float> %v33, <8 x float> %v38)
  %v53 = shufflevector <8 x float> %v50, <8 x float> poison, <8 x i32> <i32 2, i32 3, i32 2, i32 3, i32 6, i32 7, i32 6, i32 7>
  %v54 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v53, <8 x float> %v34, <8 x float> %v52)
  %v55 = mul nsw i64 %i44, %v8
  %v56 = mul nsw i64 %v29, 4
  %p57 = getelementptr float, ptr %v14, i64 %v55
  %p58 = getelementptr float, ptr %p57, i64 %v56
  store <8 x float> %v54, ptr %p58, align 4
  %v59 = add nsw i64 %i44, 1
  br label %head41
done43:
  %v60 = add nsw i64 %i22, 1
  br label %head19
done21:
  ret void
}
